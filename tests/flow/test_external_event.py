"""Events nobody waits for: the server's host hears them, and they are no history."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
import structlog
from django.db import connections
from django.utils import timezone

from cells.context import target_cell
from compute.models import InstanceAction, Step
from compute.operations import registry
from compute.periodic import purge_events
from compute.virt.base import NotSupported
from tests.flow import stories

PATH = "/os-server-external-events"


def say(admin, server_id, name="network-changed", **more):
    return admin.send("post", PATH, {"events": [{"name": name, "server_uuid": server_id, **more}]})


def test_the_host_says_that_it_did_not_expect_it_and_the_server_stays_as_it_is(api, admin, cloud):
    server_id = cloud.boot(api)
    assert say(admin, server_id, "network-vif-plugged", tag="port-1").status_code == 200
    with structlog.testing.capture_logs() as lines:
        cloud.work()
    [line] = [one for one in lines if one["event"] == "event.unexpected"]
    assert (line["event_name"], line["tag"], line["status"]) == ("network-vif-plugged", "port-1", "completed")
    assert stories.states(cloud, server_id) == ("active", None)
    stories.settled(cloud)


def test_it_is_not_in_the_servers_history(api, admin, cloud):
    server_id = cloud.boot(api)
    request_id = say(admin, server_id).headers["X-OpenStack-Request-Id"]
    cloud.work()
    path = f"/servers/{server_id}/os-instance-actions"
    assert [one["action"] for one in api.get(path).json()["instanceActions"]] == ["create"]
    assert api.get(f"{path}/{request_id}").status_code == 404


def test_it_waits_for_its_turn_and_goes_where_the_server_went(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"pause": None})
    begun = cloud.host_of(server_id).begin(stories.only_step(cloud).pk)
    assert say(admin, server_id).status_code == 200
    assert cloud.host_of(server_id).begin(cloud.queued()[0][1].pk) is None
    cloud.host_of(server_id).finish(begun)
    cloud.work()
    stories.settled(cloud)


@pytest.mark.parametrize("said", [{"name": "network-changed"}, {"name": "volume-extended", "tag": "v"}])
@pytest.mark.parametrize("heard_already", [False, True])
def test_a_host_killed_while_it_hears_does_so_again_in_its_next_life(api, admin, cloud, said, heard_already):
    server_id = cloud.boot(api)
    assert say(admin, server_id, **said).status_code == 200
    host = cloud.host_of(server_id)
    begun = host.begin(stories.only_step(cloud).pk)
    if heard_already:
        with target_cell(host.cell), suppress(NotSupported):
            action = registry.named(begun.action.key)
            getattr(action, begun.name)(action.context(begun, host.driver))
    assert host.restart() == 1
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    stories.settled(cloud)


def test_the_events_of_a_deleted_server_come_to_nothing(api, admin, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    assert say(admin, server_id).status_code == 200
    cloud.work()
    stories.settled(cloud)
    assert say(admin, server_id).json()["events"][0]["code"] == 404


def test_they_do_not_pile_up(api, admin, cloud):
    server_id = cloud.boot(api)
    say(admin, server_id)
    cloud.work()
    say(admin, server_id, tag="waits")
    with target_cell(cloud.cell_of(server_id)):
        assert purge_events.purge() == 0
        long_ago = timezone.now() - timedelta(hours=2)
        InstanceAction.objects.filter(key="ExternalEvent").update(started_at=long_ago)
        InstanceAction.objects.filter(key="ExternalEvent", finished_at__isnull=False).update(finished_at=long_ago)
        assert purge_events.purge() == 1
        assert [one.params["event"]["tag"] for one in InstanceAction.objects.filter(key="ExternalEvent")] == ["waits"]
    cloud.work()
    stories.settled(cloud)


# -- rows that are removed


def test_the_table_of_events_does_not_grow_for_ever_when_25_come_each_second(cells):
    """It grew by five hundred rows a minute: one batch of a thousand was removed in each."""
    a_minute = 60 * 25
    with target_cell(cells["cell1"]):
        for _ in range(2):
            heard_long_ago(a_minute)
            for _ in range(int(60 / purge_events.EVERY)):
                purge_events.purge()
            assert InstanceAction.objects.count() == 0
            assert Step.objects.count() == 0


def test_a_round_of_removals_ends_in_time_and_the_next_one_goes_on(cells, monkeypatch):
    monkeypatch.setattr(purge_events, "SECONDS", 0)
    with target_cell(cells["cell1"]):
        heard_long_ago(purge_events.BATCH + 1)
        assert purge_events.purge() == purge_events.BATCH
        assert purge_events.purge() == 1
        assert purge_events.purge() == 0


def test_rows_to_be_removed_are_found_by_an_index_and_not_by_reading_all_that_are_kept(cells):
    with target_cell(cells["cell1"]) as alias:
        heard_long_ago(50)
        if connections[alias].vendor == "sqlite":  # PostgreSQL reads a small table as it is
            plan = events_of_long_ago().explain()
            assert "USING INDEX external_events" in plan or "USING COVERING INDEX external_events" in plan, plan


def events_of_long_ago():
    old = timezone.now() - purge_events.KEPT
    return InstanceAction.objects.filter(key="ExternalEvent", finished_at__lt=old).order_by("finished_at")[:10]


def heard_long_ago(count):
    """Events that were heard a while ago, each by one host."""
    then = timezone.now() - purge_events.KEPT - timedelta(minutes=1)
    actions_of = InstanceAction.objects.bulk_create(
        InstanceAction(
            server_id="s", action="external_event", key="ExternalEvent", request_id="r", user_id="u", project_id="p",
            started_at=then, updated_at=then, finished_at=then,
        )
        for _ in range(count)
    )  # fmt: skip
    Step.objects.bulk_create(
        Step(action=action, server_id="s", name="receive", event="e", host="h", queue="ops", state="done",
             queued_at=then, started_at=then, finished_at=then)
        for action in actions_of
    )  # fmt: skip
