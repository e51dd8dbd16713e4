"""Unrescue: the server boots its own disk again."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import guest_shutdown
from compute.power import sync
from compute.virt.base import PowerState, VirtError
from tests.flow import one_host, stories, two_hosts
from tests.flow.one_host import MOMENTS, booted, done
from tests.flow.stories import act, message
from tests.flow.test_rescue import RESCUE, UNRESCUE, in_rescue, is_as_before, is_rescued

STEPS = ["power_off", "unrescue"]


@pytest.fixture
def rescued(api, cloud) -> str:
    """A server in rescue."""
    server_id = booted(api, cloud)
    done(api, cloud, server_id, RESCUE)
    return server_id


def test_it_is_active_with_its_own_disk(api, admin, cloud, rescued):
    assert act(api, rescued, UNRESCUE).status_code == 202
    assert stories.states(cloud, rescued) == ("rescued", "unrescuing")
    cloud.work()
    is_as_before(cloud, rescued)
    assert stories.last_action(admin, rescued)["message"] is None


def test_what_is_not_in_rescue_cannot_leave_it(api, cloud):
    server_id = booted(api, cloud)
    answer = act(api, server_id, UNRESCUE)
    text = f"Cannot 'unrescue' instance {server_id} while it is in vm_state active"
    assert (answer.status_code, message(answer)) == (409, text)


def test_while_it_goes_on_every_other_action_is_a_conflict(api, cloud, rescued):
    act(api, rescued, UNRESCUE)
    one_host.is_busy(api, rescued, UNRESCUE, "unrescuing")
    cloud.work()
    is_as_before(cloud, rescued)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_host_that_is_killed_carries_it_out_in_its_next_life(name, when, api, cloud, rescued):
    act(api, rescued, UNRESCUE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_as_before(cloud, rescued)


def test_a_host_killed_between_the_two_verbs_carries_it_out(api, cloud, rescued):
    cloud.host_of(rescued).driver.faults.fail("power_on", error=stories.Killed)
    act(api, rescued, UNRESCUE)
    with pytest.raises(stories.Killed):
        cloud.work()
    cloud.host_of(rescued).restart()
    cloud.work()
    is_as_before(cloud, rescued)


def test_one_that_fails_is_in_rescue_as_before(api, admin, cloud, rescued):
    cloud.host_of(rescued).driver.faults.fail("unrescue", error=VirtError)
    done(api, cloud, rescued, UNRESCUE)
    is_rescued(cloud, rescued)
    assert stories.last_action(admin, rescued)["message"] == "Error"
    done(api, cloud, rescued, UNRESCUE)
    is_as_before(cloud, rescued)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_host_killed_while_it_makes_good_a_failed_one_makes_it_good(when, api, cloud, rescued):
    cloud.host_of(rescued).driver.faults.fail("unrescue", error=VirtError)
    act(api, rescued, UNRESCUE)
    two_hosts.killed(cloud, two_hosts.until(cloud, "power_on_again"), when)
    cloud.work()
    is_rescued(cloud, rescued)


def test_one_whose_own_disk_does_not_boot_is_out_of_rescue_and_off(api, cloud, rescued):
    cloud.host_of(rescued).driver.faults.fail("power_on", error=VirtError)
    done(api, cloud, rescued, UNRESCUE)
    assert not in_rescue(cloud, rescued)
    assert cloud.row(rescued).power_state == PowerState.SHUTDOWN
    _sync(cloud, rescued)
    assert stories.states(cloud, rescued) == ("stopped", None)
    done(api, cloud, rescued, {"os-start": None})
    is_as_before(cloud, rescued)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_each_step_leaves_nothing(name, when, api, cloud, rescued):
    act(api, rescued, UNRESCUE)
    one_host.preempted(api, cloud, rescued, two_hosts.until(cloud, name), when)


def test_a_guest_in_rescue_that_goes_off_is_still_rescued_and_can_leave(api, cloud, rescued):
    cloud.host_of(rescued).driver.power_off_from_inside(rescued)
    _sync(cloud, rescued)
    assert (cloud.row(rescued).vm_state, cloud.row(rescued).power_state) == ("rescued", PowerState.SHUTDOWN)
    done(api, cloud, rescued, UNRESCUE)
    is_as_before(cloud, rescued)


def test_a_guest_whose_host_booted_comes_back_in_rescue(api, cloud, rescued, settings):
    """As libvirt-guests or a power cut left it: off, with nobody having written that down."""
    settings.RESUME_GUESTS = True
    host = cloud.host_of(rescued)
    host.driver.power_off(rescued)
    _sync(cloud, rescued, booted=True)
    with target_cell(host.cell):
        assert guest_shutdown.start_guests(host.name) == 1
    cloud.work()
    is_rescued(cloud, rescued)
    done(api, cloud, rescued, UNRESCUE)
    is_as_before(cloud, rescued)


def test_an_operator_leads_out_of_rescue_with_a_reset_and_a_hard_reboot(api, admin, cloud, rescued):
    act(admin, rescued, {"os-resetState": {"state": "active"}})
    done(api, cloud, rescued, {"reboot": {"type": "HARD"}})
    is_as_before(cloud, rescued)


def test_one_that_is_deleted_softly_and_restored_is_as_it_was(api, cloud, rescued, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600
    assert api.delete(f"/servers/{rescued}").status_code == 204
    cloud.work()
    assert stories.states(cloud, rescued) == ("soft-delete", None)
    done(api, cloud, rescued, {"restore": None})
    is_rescued(cloud, rescued)


def _sync(cloud, server_id, booted=False):
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        sync.sync(host.name, host.driver, booted=booted)
