"""A host that was gone comes back: it turns off and removes what lives elsewhere by now, or is deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.actions import delete
from compute.models import Instance, InstanceAction, Step
from compute.operations import recovery
from compute.power import sync
from compute.virt.base import HypervisorUnavailable, PowerState
from tests.flow import stories, two_hosts
from tests.flow.lost_hosts import WHEN, back, evacuate, force, gone_host, is_at, lost, migration, moved_out, until, work
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import LIVE, booted, claimed, homes


@pytest.mark.parametrize("when", WHEN)
def test_a_host_killed_while_it_removes_its_old_guest_removes_it_in_its_next_life(when, admin, cloud):
    server_id = moved_out(admin, cloud)
    back(cloud)
    two_hosts.killed(cloud, until(cloud, "remove"), when)
    cloud.work()
    is_at(cloud, server_id, "host3")
    assert migration(admin, server_id)["status"] == "completed"


def test_it_moves_back_to_its_old_host_once_that_has_cleaned_up(admin, cloud):
    server_id = moved_out(admin, cloud)
    assert act(admin, server_id, {"os-migrateLive": {"host": "host1", "block_migration": "auto"}}).status_code == 400
    back(cloud)
    answer = force(admin, "host1", down=False)
    assert answer.status_code == 400
    assert "still has to remove what it has of 1 server" in message(answer)
    cloud.work()
    assert force(admin, "host1", down=False).status_code == 200
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host1")


def test_a_host_cannot_be_forced_up_while_a_server_is_being_evacuated(admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    assert force(admin, "host1", down=False).status_code == 400
    assert back(cloud) == 1  # should it start all the same: nothing of it runs twice
    assert states(cloud, server_id) == ("active", "rebuilding")
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_host_that_fails_to_clean_up_tries_for_ever(admin, cloud):
    server_id = moved_out(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("destroy", times=20, error=HypervisorUnavailable)
    back(cloud)
    for _ in range(22):
        stories.later(cloud)
        cloud.work()
    is_at(cloud, server_id, "host3")


def test_the_relay_does_not_send_for_a_host_that_is_away_all_the_time(admin, cloud):
    moved_out(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        owed = Step.objects.get(name="remove")
        Step.objects.filter(pk=owed.pk).update(sends=12, sent_at=timezone.now() - timedelta(seconds=300))
        assert recovery.relay() == 0
        Step.objects.filter(pk=owed.pk).update(sent_at=timezone.now() - timedelta(seconds=601))
        assert recovery.relay() == 1


def test_a_host_that_is_removed_owes_nothing(admin, cloud):
    server_id = moved_out(admin, cloud)
    (service,) = admin.get("/os-services?host=host1", version="2.96").json()["services"]
    assert admin.delete(f"/os-services/{service['id']}", version="2.96").status_code == 204
    assert not cloud.queued()
    assert cloud.history(server_id)[-1].outcome == "the host was removed"


def test_the_old_host_writes_nothing_of_a_server_that_left(admin, cloud):
    server_id = moved_out(admin, cloud)
    driver = cloud.hosts["host1"].driver
    with target_cell(cloud.cells["cell1"]):
        driver.power_off_from_inside(server_id)
        assert sync.sync("host1", driver, booted=True) == 0
        assert Instance.objects.get(uuid=server_id).power_state == PowerState.RUNNING
        assert not InstanceAction.objects.filter(server_id=server_id, action="stop").exists()


def test_a_delete_after_an_evacuation_leaves_nothing_anywhere(admin, cloud):
    server_id = moved_out(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    work(cloud, "host1")
    assert cloud.row(server_id).deleted
    back(cloud)
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_delete_of_a_server_whose_host_is_gone_ends_at_once(admin, cloud):
    server_id = lost(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    assert admin.get(f"/servers/{server_id}").status_code == 404
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    assert back(cloud) == 1
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_delete_that_waits_for_its_host_ends_when_that_is_said_to_be_gone(when, admin, cloud):
    server_id = booted(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    step = two_hosts.waiting(cloud)
    if when == "inside":
        two_hosts.claim(cloud, step)
    with target_cell(cloud.cells["cell1"]):
        assert delete.end_waiting() == 0
    gone_host(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        assert delete.end_waiting() == 1
        assert delete.end_waiting() == 0
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    back(cloud)
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_delete_of_a_resized_server_whose_hosts_are_gone(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    assert cloud.row(server_id).host == "host3"
    gone_host(admin, cloud, "host1")
    gone_host(admin, cloud, "host3")
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    back(cloud, "host1")
    back(cloud, "host3")
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_soft_delete_waits_for_its_host_and_a_forced_one_does_not(admin, cloud, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600
    kept, lost_for_good = booted(admin, cloud), cloud.boot(admin, "b", host="host1")
    gone_host(admin, cloud)
    for server_id in (kept, lost_for_good):
        assert admin.delete(f"/servers/{server_id}").status_code == 204
        assert states(cloud, server_id) == ("active", "soft-deleting")
    assert evacuate(admin, kept).status_code == 409
    assert act(admin, lost_for_good, {"forceDelete": None}).status_code == 202
    assert cloud.row(lost_for_good).deleted
    back(cloud)
    cloud.work()
    assert states(cloud, kept) == ("soft-delete", None)
    assert homes(cloud, lost_for_good) == []
