"""Deleting a server that can be restored for a while, and what becomes of it when nobody does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from cells.models import InstanceMapping
from compute.models import Instance
from compute.periodic import reclaim_deleted, stale_delete_flags
from compute.placement import quota
from compute.virt.base import PowerState, VirtError
from tests.conftest import PROJECT
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import killed, until

MOMENTS = ("before", "inside", "after the work")
SHUT = PowerState.SHUTDOWN


@pytest.fixture(autouse=True)
def _kept_for_an_hour(settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600


def delete(api, server_id):
    answer = api.delete(f"/servers/{server_id}")
    assert (answer.status_code, answer.content) == (204, b"")


def soft_deleted(api, cloud, name="a"):
    server_id = cloud.boot(api, name)
    delete(api, server_id)
    cloud.work()
    is_kept(cloud, server_id)
    return server_id


def is_kept(cloud, server_id):
    row = cloud.row(server_id)
    assert (row.vm_state, row.task_state, row.deleted) == ("soft-delete", None, False)
    assert row.soft_deleted_at is not None
    assert row.power_state == cloud.host_of(server_id).driver.power_state(server_id) == SHUT
    assert not counts(server_id)
    stories.settled(cloud)


def counts(server_id):
    return not InstanceMapping.objects.get(pk=server_id).queued_for_delete


def listed(api, query="", path="/servers"):
    answer = api.get(f"{path}?{query}")
    assert answer.status_code == 200, answer.content
    return {server["id"] for server in answer.json()["servers"]}


def an_hour_later(cloud):
    for cell in cloud.cells.values():
        with target_cell(cell):
            Instance.objects.update(soft_deleted_at=timezone.now() - timedelta(hours=2))


def reclaimed(cloud):
    found = 0
    for cell in cloud.cells.values():
        with target_cell(cell):
            found += reclaim_deleted.reclaim()
    return found


# -- what it is


@pytest.mark.parametrize("where", [(), ("stop",), ("pause",), ("suspend",)], ids=str)
def test_a_deleted_server_is_off_kept_and_not_counted(where, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, where)
    before, claimed = states(cloud, server_id)[0], cloud.used()
    delete(api, server_id)
    assert states(cloud, server_id) == (before, "soft-deleting")
    assert quota.usage(PROJECT).instances == 0

    cloud.work()

    is_kept(cloud, server_id)
    assert cloud.used() == claimed
    done = stories.last_action(api, server_id)
    assert (done["action"], done["message"]) == ("delete", None)
    assert [e["event"] for e in done["events"]] == ["compute_soft_delete_instance"]
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "SOFT_DELETED"


def test_it_is_not_asked_to_shut_down(api, cloud):
    """As with Nova: it was to be gone."""
    server_id = soft_deleted(api, cloud)
    assert cloud.history(server_id)[-1].outcome == "forced off at once"


def test_nothing_can_be_done_with_it_but_restore_and_delete(api, cloud):
    server_id = soft_deleted(api, cloud)
    for body in ({"os-start": None}, {"reboot": {"type": "HARD"}}, {"createImage": {"name": "x"}}):
        answer = act(api, server_id, body)
        assert answer.status_code == 409
        assert "vm_state soft-delete" in message(answer)


def test_who_sees_it_in_lists(api, admin, stranger, cloud):
    kept, living = soft_deleted(api, cloud), cloud.boot(api, "b")
    assert listed(api) == listed(api, path="/servers/detail") == {living}
    assert listed(api, "status=SOFT_DELETED") == {kept}
    assert listed(api, "status=soft_deleted&status=ACTIVE") == {kept, living}
    assert listed(api, "changes-since=2020-01-01") == {kept, living}
    assert listed(api, "deleted=true") == listed(api, "soft_deleted=true") == {living}  # an admin's words
    assert listed(admin, "all_tenants=1") == {living}
    assert listed(admin, "all_tenants=1&deleted=true") == {kept}
    assert listed(admin, "all_tenants=1&deleted=true&soft_deleted=false") == set()
    assert listed(admin, "all_tenants=1&soft_deleted=true") == {kept, living}
    assert listed(stranger, "status=SOFT_DELETED") == set()


def test_without_the_interval_a_delete_is_for_good(api, cloud, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 0
    server_id = cloud.boot(api)
    delete(api, server_id)
    cloud.work()
    stories.ends_well("delete", cloud, server_id)


def test_one_that_never_ran_is_deleted_for_good(api, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=-1)
    server_id = cloud.boot(api)
    delete(api, server_id)
    cloud.work()
    assert cloud.row(server_id).deleted
    stories.settled(cloud)


def test_a_locked_server_is_not_soft_deleted(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"lock": None})
    assert api.delete(f"/servers/{server_id}").status_code == 409
    assert counts(server_id)


# -- races


def test_a_second_delete_on_the_way_is_success_and_later_the_time_begins_anew(api, cloud):
    server_id = cloud.boot(api)
    delete(api, server_id)
    delete(api, server_id)
    assert len(cloud.queued()) == 1
    cloud.work()
    an_hour_later(cloud)
    delete(api, server_id)  # as with Nova
    cloud.work()
    is_kept(cloud, server_id)
    assert reclaimed(cloud) == 0


@pytest.mark.parametrize("begun", [False, True])
def test_it_preempts_what_goes_on(begun, api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    if begun:
        host = cloud.host_of(server_id)
        host.begin(stories.only_step(cloud).pk)
        delete(api, server_id)
        host.restart()
    else:
        delete(api, server_id)
    cloud.work()
    is_kept(cloud, server_id)


def test_a_reset_of_the_state_takes_it_out_and_it_is_counted_again(api, admin, cloud, settings):
    settings.RESEND_AFTER = 0
    server_id = soft_deleted(api, cloud)
    assert stale_delete_flags.clear() == 0
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    stale_delete_flags.clear()
    assert counts(server_id)


@pytest.mark.parametrize("step", ["pick", "pre_migrate", "migrate_out", "finish_migration"])
def test_a_server_on_its_way_to_another_host_is_kept_in_one_place(step, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    until(cloud, step)
    delete(admin, server_id)
    cloud.work()
    is_kept(cloud, server_id)
    assert two_hosts.homes(cloud, server_id) == [cloud.row(server_id).host]
    assert two_hosts.claimed(cloud, server_id) == {cloud.row(server_id).host}


@pytest.mark.parametrize("step", ["pre_migrate", "migrate_out", "finish_migration", "cleanup_source"])
def test_a_server_that_is_live_migrated_is_kept_in_one_place(step, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, two_hosts.LIVE)
    until(cloud, step)
    delete(admin, server_id)
    cloud.work()
    is_kept(cloud, server_id)
    assert two_hosts.claimed(cloud, server_id) == {cloud.row(server_id).host}


def test_a_resized_server_is_confirmed_by_its_delete(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    assert states(cloud, server_id) == ("resized", None)
    delete(admin, server_id)
    cloud.work()
    is_kept(cloud, server_id)
    assert two_hosts.homes(cloud, server_id) == ["host3"]
    assert two_hosts.claimed(cloud, server_id) == {"host3"}
    [migration] = admin.get("/os-migrations", version="2.80").json()["migrations"]
    assert migration["status"] == "confirmed"
    assert act(admin, server_id, {"revertResize": None}).status_code == 409


# -- killed, and failed


@pytest.mark.parametrize("when", MOMENTS)
def test_its_host_is_killed(when, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    delete(admin, server_id)
    killed(cloud, until(cloud, "power_off"), when)
    cloud.work()
    is_kept(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
def test_the_host_it_left_is_killed(when, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    delete(admin, server_id)
    killed(cloud, until(cloud, "cleanup_source"), when)
    cloud.work()
    is_kept(cloud, server_id)
    assert two_hosts.homes(cloud, server_id) == ["host3"]


@pytest.mark.parametrize("when", MOMENTS)
def test_a_conductor_that_counts_it_again_is_killed(when, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("power_off", error=VirtError)
    delete(admin, server_id)
    killed(cloud, until(cloud, "restore_quota"), when)
    cloud.work()
    assert states(cloud, server_id) == ("active", None)
    assert counts(server_id)
    assert cloud.history(server_id)[-1].message == "Error"
    stories.settled(cloud)
    delete(admin, server_id)
    cloud.work()
    is_kept(cloud, server_id)


def test_one_that_is_soft_deleted_again_and_fails_does_not_count(api, cloud):
    server_id = soft_deleted(api, cloud)
    cloud.host_of(server_id).driver.faults.fail("power_off", error=VirtError)
    delete(api, server_id)
    cloud.work()
    is_kept(cloud, server_id)


# -- for good


def test_nobody_restored_it_so_it_is_deleted_for_good_once(api, cloud):
    server_id, later = soft_deleted(api, cloud), soft_deleted(api, cloud, "later")
    assert reclaimed(cloud) == 0
    with target_cell(cloud.cell_of(server_id)):
        long_ago = timezone.now() - timedelta(seconds=3601)
        Instance.objects.filter(uuid=server_id).update(soft_deleted_at=long_ago)
    assert (reclaimed(cloud), reclaimed(cloud)) == (1, 0)  # a second conductor, or the next life of the first
    cloud.work()
    assert cloud.row(server_id).deleted
    assert not cloud.row(later).deleted
    assert not counts(server_id)
    stories.settled(cloud)
    assert api.get(f"/servers/{server_id}").status_code == 404


def test_many_are_deleted_in_batches(api, cloud, monkeypatch):
    monkeypatch.setattr(reclaim_deleted, "BATCH", 1)
    servers = [soft_deleted(api, cloud, name) for name in ("a", "b", "c")]
    an_hour_later(cloud)
    while reclaimed(cloud):
        cloud.work()
    assert all(cloud.row(server_id).deleted for server_id in servers)
    stories.settled(cloud)


def test_a_restore_that_was_faster_than_the_end_of_its_time_wins(api, cloud, monkeypatch):
    server_id = soft_deleted(api, cloud)
    an_hour_later(cloud)
    overdue = list(_overdue_in(cloud, server_id))
    assert act(api, server_id, {"restore": None}).status_code == 202
    monkeypatch.setattr(reclaim_deleted, "_overdue", lambda: overdue)
    with target_cell(cloud.cell_of(server_id)):
        assert reclaim_deleted.reclaim() == 0
    cloud.work()
    assert states(cloud, server_id) == ("active", None)
    assert counts(server_id)


def _overdue_in(cloud, server_id):
    with target_cell(cloud.cell_of(server_id)):
        return list(reclaim_deleted._overdue())


def test_a_host_that_is_away_when_the_time_is_over_deletes_it_when_it_is_back(api, cloud):
    server_id = soft_deleted(api, cloud)
    an_hour_later(cloud)
    assert reclaimed(cloud) == 1
    host = cloud.host_of(server_id)
    host.begin(stories.only_step(cloud).pk)
    assert reclaimed(cloud) == 0
    assert host.restart() == 1
    cloud.work()
    assert cloud.row(server_id).deleted
    stories.settled(cloud)
