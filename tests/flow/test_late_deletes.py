"""A delete of a server whose cell is down is accepted, and done when the cell is back."""

from __future__ import annotations

import pytest

from cells import circuit_breaker
from cells.models import DeferredDelete, InstanceMapping
from compute.periodic import stale_delete_flags
from compute.placement import quota
from compute.servers import deferred_deletes
from tests.flow import stories


@pytest.fixture
def away(api, cloud):
    """A server whose cell does not answer; its id."""
    server_id = cloud.boot(api)
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "cut off")
    return server_id


def comes_back(cloud, server_id):
    circuit_breaker.record_recovery(cloud.cell_of(server_id).id)


def is_deleted(api, cloud, server_id):
    assert deferred_deletes.carry_out() == 1
    cloud.work()
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert server_id not in cloud.host_of(server_id).driver.guests()
    assert not DeferredDelete.objects.exists()
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete


def test_it_is_accepted_at_once_and_done_when_the_cell_is_back(api, cloud, away):
    used = quota.usage(api.caller.project_id).instances
    assert api.delete(f"/servers/{away}").status_code == 204
    assert quota.usage(api.caller.project_id).instances == used - 1
    assert api.get(f"/servers/{away}").status_code == 404
    assert [one["id"] for one in api.get("/servers").json()["servers"]] == []
    assert deferred_deletes.carry_out() == 0
    comes_back(cloud, away)
    is_deleted(api, cloud, away)


def test_it_is_in_the_servers_history_under_the_request_that_asked(api, cloud, away):
    answer = api.delete(f"/servers/{away}")
    comes_back(cloud, away)
    is_deleted(api, cloud, away)
    last = cloud.history(away)[-1]
    assert (last.action, last.request_id) == ("delete", answer.headers["X-OpenStack-Request-Id"])


def test_what_was_said_about_the_guests_shutdown_is_kept(api, cloud, away):
    assert api.delete(f"/servers/{away}?shutdown_type=SOFT&shutdown_timeout=7").status_code == 204
    comes_back(cloud, away)
    is_deleted(api, cloud, away)
    assert cloud.history(away)[-1].params["shutdown_timeout"] == 7


def test_nobody_takes_the_flag_of_a_delete_that_waits_for_its_cell(api, cloud, away, settings):
    settings.RESEND_AFTER = 0
    api.delete(f"/servers/{away}")
    comes_back(cloud, away)
    for _ in range(3):
        assert stale_delete_flags.clear() == 0
    is_deleted(api, cloud, away)


def test_a_lock_holds_it_and_the_server_is_counted_again(api, cloud, away):
    comes_back(cloud, away)
    assert stories.act(api, away, {"lock": None}).status_code == 202
    circuit_breaker.record_failure(cloud.cell_of(away).id, "cut off")
    assert api.delete(f"/servers/{away}").status_code == 204
    comes_back(cloud, away)
    assert deferred_deletes.carry_out() == 0
    cloud.work()
    assert api.get(f"/servers/{away}").json()["server"]["status"] == "ACTIVE"
    assert not DeferredDelete.objects.exists()
    assert not InstanceMapping.objects.get(pk=away).queued_for_delete


def test_a_lock_does_not_hold_an_admin(api, admin, cloud, away):
    comes_back(cloud, away)
    stories.act(api, away, {"lock": None})
    circuit_breaker.record_failure(cloud.cell_of(away).id, "cut off")
    assert admin.delete(f"/servers/{away}").status_code == 204
    comes_back(cloud, away)
    is_deleted(api, cloud, away)


def test_a_scheduler_killed_after_it_told_the_cell_is_followed_by_another_one(api, cloud, away, monkeypatch):
    api.delete(f"/servers/{away}")
    comes_back(cloud, away)
    with monkeypatch.context() as broken:
        broken.setattr(deferred_deletes, "_forget", _killed)
        with pytest.raises(stories.Killed):
            deferred_deletes.carry_out()
    is_deleted(api, cloud, away)
    assert [one.action for one in cloud.history(away)].count("delete") == 1


def test_strangers_delete_nothing(stranger, cloud, away):
    assert stranger.delete(f"/servers/{away}").status_code == 404
    assert not DeferredDelete.objects.exists()


def _killed(*_):
    raise stories.Killed
