"""Bringing a soft-deleted server back."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from cells.models import InstanceMapping, RequestSpec
from compute.placement import quota
from compute.virt.base import PowerState, VirtError
from tests.conftest import PROJECT
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import killed, until

RESTORE = {"restore": None}
MOMENTS = ("before", "inside", "after the work")


@pytest.fixture(autouse=True)
def _kept_for_an_hour(settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600


def soft_deleted(api, cloud, where=(), name="a"):
    server_id = cloud.boot(api, name)
    stories.lead(api, cloud, server_id, where)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert states(cloud, server_id) == ("soft-delete", None)
    return server_id


def on_host1(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    admin.delete(f"/servers/{server_id}")
    cloud.work()
    return server_id


def counts(server_id):
    return not InstanceMapping.objects.get(pk=server_id).queued_for_delete


def is_back(cloud, server_id, state="active"):
    assert states(cloud, server_id) == (state, None)
    assert cloud.row(server_id).soft_deleted_at is None
    assert counts(server_id)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def stays(cloud, server_id):
    assert states(cloud, server_id) == ("soft-delete", None)
    assert not counts(server_id)
    stories.settled(cloud)


@pytest.mark.parametrize(("where", "end"), [
    ((), "active"), (("pause",), "active"), (("suspend",), "active"), (("stop",), "stopped"),
])  # fmt: skip
def test_it_runs_again_unless_it_was_off(where, end, api, cloud):
    server_id = soft_deleted(api, cloud, where)
    assert act(api, server_id, RESTORE).status_code == 202
    assert states(cloud, server_id) == ("soft-delete", "restoring")
    again = act(api, server_id, RESTORE)
    text = f"Cannot 'restore' instance {server_id} while it is in task_state restoring"
    assert (again.status_code, message(again)) == (409, text)

    cloud.work()

    is_back(cloud, server_id, end)
    done = stories.last_action(api, server_id)
    assert (done["action"], done["message"]) == ("restore", None)
    assert sorted(e["event"] for e in done["events"]) == ["compute_restore_instance", "conductor_restore_instance"]
    assert api.get("/servers").json()["servers"][0]["id"] == server_id


def test_deleted_twice_it_is_still_what_it_was(api, cloud):
    server_id = soft_deleted(api, cloud, ("stop",))
    api.delete(f"/servers/{server_id}")
    cloud.work()
    act(api, server_id, RESTORE)
    cloud.work()
    is_back(cloud, server_id, "stopped")


def test_what_lives_cannot_be_restored(api, cloud):
    server_id = cloud.boot(api)
    answer = act(api, server_id, RESTORE)
    text = f"Cannot 'restore' instance {server_id} while it is in vm_state active"
    assert (answer.status_code, message(answer)) == (409, text)
    api.delete(f"/servers/{server_id}")
    assert act(api, server_id, RESTORE).status_code == 409  # not yet


def test_who_may(api, admin, stranger, reader, cloud):
    server_id = soft_deleted(api, cloud)
    assert act(stranger, server_id, RESTORE).status_code == 404
    assert act(reader, server_id, RESTORE).status_code == 403
    act(api, server_id, {"lock": None})
    assert act(api, server_id, RESTORE).status_code == 409
    assert act(admin, server_id, RESTORE).status_code == 202
    cloud.work()
    is_back(cloud, server_id)


# -- the quota


def test_a_project_without_room_for_it_is_told_so_at_once(api, cloud):
    server_id = soft_deleted(api, cloud)
    quota.set_limits(PROJECT, {"cores": 1})
    cloud.boot(api, "in its place")
    answer = act(api, server_id, RESTORE)
    text = "Quota exceeded for cores: Requested 1, but already used 1 of 1 cores"
    assert (answer.status_code, message(answer)) == (403, text)
    stays(cloud, server_id)


def test_of_two_that_are_restored_at_once_and_room_for_one_only_one_comes_back(api, cloud):
    servers = [soft_deleted(api, cloud, name=name) for name in "ab"]
    quota.set_limits(PROJECT, {"instances": 1})
    assert [act(api, server_id, RESTORE).status_code for server_id in servers] == [202, 202]
    cloud.work()
    assert sorted(states(cloud, server_id)[0] for server_id in servers) == ["active", "soft-delete"]
    assert quota.usage(PROJECT).instances == 1
    [left] = [server_id for server_id in servers if states(cloud, server_id)[0] == "soft-delete"]
    stays(cloud, left)
    assert "Quota exceeded for instances" in cloud.row(left).fault["message"]


def test_one_that_was_resized_counts_as_what_it_is_now(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    RequestSpec.objects.filter(pk=server_id).update(memory_mb=4096)  # the larger of two sizes, until it is confirmed
    admin.delete(f"/servers/{server_id}")
    cloud.work()
    act(admin, server_id, RESTORE)
    cloud.work()
    is_back(cloud, server_id)
    assert RequestSpec.objects.get(pk=server_id).memory_mb == cloud.row(server_id).memory_mb == 512


def test_the_interval_may_be_off_again_by_then(api, cloud, settings):
    server_id = soft_deleted(api, cloud)
    settings.RECLAIM_INSTANCE_INTERVAL = 0
    act(api, server_id, RESTORE)
    cloud.work()
    is_back(cloud, server_id)
    assert django_settings.RECLAIM_INSTANCE_INTERVAL == 0


# -- killed, failed, taken


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", ["update_quota", "power_on"])
def test_whoever_runs_it_is_killed(name, when, admin, cloud):
    server_id = on_host1(admin, cloud)
    act(admin, server_id, RESTORE)
    killed(cloud, until(cloud, name), when)
    cloud.work()
    is_back(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_conductor_that_takes_it_back_is_killed(when, admin, cloud):
    server_id = on_host1(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("power_on", error=VirtError)
    act(admin, server_id, RESTORE)
    killed(cloud, until(cloud, "revert_quota"), when)
    cloud.work()
    stays(cloud, server_id)
    assert cloud.history(server_id)[-1].message == "Error"
    act(admin, server_id, RESTORE)
    cloud.work()
    is_back(cloud, server_id)


@pytest.mark.parametrize("name", ["update_quota", "power_on"])
@pytest.mark.parametrize("running", [False, True])
def test_a_delete_during_a_restore(name, running, admin, cloud):
    """With the interval on it is kept again, off and not counted."""
    server_id = on_host1(admin, cloud)
    act(admin, server_id, RESTORE)
    step = until(cloud, name)
    if running:
        step = two_hosts.claim(cloud, step)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    if running:
        two_hosts.work(cloud, step)
        two_hosts.restart(cloud, step)
    cloud.work()
    stays(cloud, server_id)
    row = cloud.row(server_id)
    assert row.power_state == cloud.hosts["host1"].driver.power_state(server_id) == 4


@pytest.mark.parametrize("name", ["update_quota", "power_on"])
def test_an_operator_who_resets_its_state_during_a_restore_has_it_counted(name, admin, cloud):
    server_id = on_host1(admin, cloud)
    act(admin, server_id, RESTORE)
    until(cloud, name)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    cloud.work()
    assert states(cloud, server_id) == ("error", None)
    assert counts(server_id) is (name == "power_on")  # the other one is counted again by the scheduler's sweep


@pytest.mark.parametrize(("body", "state", "runs"), [
    ({"rescue": None}, "rescued", True), ({"shelve": None}, "shelved", False),
])  # fmt: skip
def test_one_that_was_rescued_or_shelved_is_so_again(body, state, runs, api, cloud, settings):
    settings.SHELVED_OFFLOAD_TIME = -1  # it stays on its host
    server_id = cloud.boot(api)
    act(api, server_id, body)
    cloud.work()
    assert states(cloud, server_id) == (state, None)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert states(cloud, server_id) == ("soft-delete", None)
    act(api, server_id, RESTORE)
    cloud.work()
    assert states(cloud, server_id) == (state, None)
    assert counts(server_id)
    power = cloud.host_of(server_id).driver.power_state(server_id)
    assert (power == PowerState.RUNNING) is runs
    assert cloud.row(server_id).power_state == power
    back = {"rescued": "unrescue", "shelved": "unshelve"}[state]
    assert act(api, server_id, {back: None}).status_code == 202
    cloud.work()
    is_back(cloud, server_id)
