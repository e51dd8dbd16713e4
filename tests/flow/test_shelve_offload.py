"""Offload: a shelved server leaves its host, because somebody or the clock says so."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Instance
from compute.periodic import offload_shelved
from compute.virt.base import VirtError
from tests.flow import one_host, stories, two_hosts
from tests.flow.one_host import MOMENTS, booted, done
from tests.flow.stories import act, message
from tests.flow.test_evacuate import back, gone_host, work
from tests.flow.test_shelve import SHELVE, images, is_kept, is_offloaded

OFFLOAD = {"shelveOffload": None}


@pytest.fixture
def shelved(api, cloud, settings) -> str:
    """A server that is shelved, on its host."""
    settings.SHELVED_OFFLOAD_TIME = -1
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    return server_id


def test_its_host_is_free(admin, cloud, shelved):
    is_kept(cloud, shelved)
    assert act(admin, shelved, OFFLOAD).status_code == 202
    assert stories.states(cloud, shelved) == ("shelved", "shelving_offloading")
    cloud.work()
    is_offloaded(cloud, shelved)
    [event] = stories.last_action(admin, shelved)["events"]
    assert (event["event"], event["result"]) == ("compute_shelve_offload_instance", "Success")


def test_only_an_admin_may(api, cloud, shelved):
    assert act(api, shelved, OFFLOAD).status_code == 403
    is_kept(cloud, shelved)


def test_what_is_not_shelved_cannot_be_offloaded(admin, api, cloud):
    server_id = booted(api, cloud)
    answer = act(admin, server_id, OFFLOAD)
    text = f"Cannot 'shelveOffload' instance {server_id} while it is in vm_state active"
    assert (answer.status_code, message(answer)) == (409, text)


def test_while_it_goes_on_every_other_action_is_a_conflict(admin, cloud, shelved):
    act(admin, shelved, OFFLOAD)
    one_host.is_busy(admin, shelved, OFFLOAD, "shelving_offloading")
    cloud.work()
    is_offloaded(cloud, shelved)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_host_that_is_killed_carries_it_out_in_its_next_life(when, admin, cloud, shelved):
    act(admin, shelved, OFFLOAD)
    two_hosts.killed(cloud, two_hosts.until(cloud, "offload"), when)
    cloud.work()
    is_offloaded(cloud, shelved)


def test_a_host_that_never_lets_go_leaves_it_shelved(admin, cloud, shelved):
    driver = cloud.host_of(shelved).driver
    driver.faults.fail("destroy", times=-1, error=VirtError)
    act(admin, shelved, OFFLOAD)
    one_host.tried_out(cloud)
    is_kept(cloud, shelved)
    driver.faults.clear()
    done(admin, cloud, shelved, OFFLOAD)
    is_offloaded(cloud, shelved)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_delete_leaves_nothing(when, api, admin, cloud, shelved):
    act(admin, shelved, OFFLOAD)
    one_host.preempted(api, cloud, shelved, two_hosts.until(cloud, "offload"), when)
    assert not images()


def test_a_reset_state_after_it_was_begun_changes_nothing(admin, cloud, shelved):
    act(admin, shelved, OFFLOAD)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, "offload"))
    two_hosts.work(cloud, step)
    act(admin, shelved, {"os-resetState": {"state": "active"}})
    two_hosts.restart(cloud, step)
    cloud.work()
    is_offloaded(cloud, shelved)


@pytest.mark.parametrize(("age", "asked_for"), [(59, 0), (61, 1)])
def test_the_clock_offloads_what_is_shelved_for_long_enough(age, asked_for, cloud, shelved, settings):
    settings.SHELVED_OFFLOAD_TIME = 60
    with target_cell(cloud.cells["cell1"]):
        Instance.objects.update(shelved_at=timezone.now() - timedelta(seconds=age))
        assert offload_shelved.offload() == asked_for
        assert offload_shelved.offload() == 0  # it goes on already
    cloud.work()
    (is_offloaded if asked_for else is_kept)(cloud, shelved)


def test_where_they_are_to_stay_the_clock_leaves_them_alone(cloud, shelved):
    with target_cell(cloud.cells["cell1"]):
        assert offload_shelved.offload() == 0
    is_kept(cloud, shelved)


def test_one_whose_host_is_gone_needs_nothing_of_it(api, admin, cloud, shelved):
    """The image is complete, so it can come back elsewhere at once; its old host removes what it has."""
    host = cloud.row(shelved).host
    gone_host(admin, cloud, host)
    assert act(admin, shelved, OFFLOAD).status_code == 202
    assert stories.states(cloud, shelved) == ("shelved_offloaded", None)
    assert not two_hosts.claimed(cloud, shelved)
    assert act(api, shelved, {"unshelve": None}).status_code == 202
    work(cloud, host)
    new = cloud.row(shelved).host
    assert stories.states(cloud, shelved) == ("active", None)
    assert new != host

    back(cloud, host)
    cloud.work()
    assert two_hosts.homes(cloud, shelved) == [new]
    stories.settled(cloud)


def test_one_that_is_deleted_softly_and_restored_is_as_it_was(api, cloud, shelved, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600
    assert api.delete(f"/servers/{shelved}").status_code == 204
    cloud.work()
    assert stories.states(cloud, shelved) == ("soft-delete", None)
    done(api, cloud, shelved, {"restore": None})
    is_kept(cloud, shelved)
