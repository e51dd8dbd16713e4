"""A host is lost while it waits for a guest: the wait is over, and whoever takes the server has it to himself."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.actions import delete
from compute.hosts import drain
from compute.virt.base import PowerState
from tests.flow import stories, two_hosts
from tests.flow.lost_hosts import back, evacuate, gone_host, is_at, work
from tests.flow.stories import act
from tests.flow.waits import begin


def lost(name, admin, cloud, settings):
    """It waits, and its host is off."""
    waiting = begin(name, admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    gone_host(admin, cloud, waiting.host.name)
    return waiting


@pytest.mark.parametrize("name", ["stop", "soft reboot", "rescue", "shelve", "migrate"])
def test_its_server_is_evacuated_and_what_waited_is_over(name, admin, cloud, settings):
    waiting = lost(name, admin, cloud, settings)
    asked = waiting.newest()
    assert evacuate(admin, waiting.server_id).status_code == 200
    work(cloud, waiting.host.name)
    assert waiting.host.waiting() == []
    assert (cloud.row(waiting.server_id).host, stories.states(cloud, waiting.server_id)) == ("host3", ("active", None))
    back(cloud, waiting.host.name)
    cloud.work()
    is_at(cloud, waiting.server_id, "host3")
    outcome = next(action.outcome for action in cloud.history(waiting.server_id) if action.pk == asked.pk)
    assert "host host1 is gone" in outcome


@pytest.mark.parametrize("name", ["stop", "unrescue", "resize", "revert", "rebuild"])
def test_its_server_is_deleted_at_once(name, admin, cloud, settings):
    waiting = lost(name, admin, cloud, settings)
    assert admin.delete(f"/servers/{waiting.server_id}").status_code == 204
    assert cloud.row(waiting.server_id).deleted
    assert waiting.host.waiting() == []
    work(cloud, waiting.host.name)
    back(cloud, waiting.host.name)
    cloud.work()
    stories.settled(cloud)
    assert two_hosts.homes(cloud, waiting.server_id) == []


def test_a_delete_that_waits_there_ends(admin, cloud, settings):
    waiting = lost("delete", admin, cloud, settings)
    with target_cell(waiting.host.cell):
        assert delete.end_waiting() == 1
        assert delete.end_waiting() == 0
    assert cloud.row(waiting.server_id).deleted
    back(cloud, waiting.host.name)
    cloud.work()
    stories.settled(cloud)
    assert two_hosts.homes(cloud, waiting.server_id) == []


def test_a_host_that_comes_back_before_anybody_took_its_server_goes_on_with_the_clock(admin, cloud, settings):
    waiting = lost("stop", admin, cloud, settings)
    timer = waiting.timer
    back(cloud, waiting.host.name)
    with waiting.host.with_watcher():
        assert waiting.timer == timer
        waiting.goes_off()
        cloud.work_until(waiting.is_over)
    waiting.ended_with(timer)


def test_the_other_host_of_a_move_that_waits_is_waited_for_when_it_drains(admin, cloud, settings):
    waiting = begin("migrate", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        with target_cell(waiting.host.cell):
            assert drain.needs("host3") == 1
            [held] = drain.waiting_operations("host3")
            assert held.waits_for == "step migrate_out on host1"
        waiting.goes_off()
        cloud.work_until(waiting.is_over)
    assert act(admin, waiting.server_id, {"confirmResize": None}).status_code in (202, 204)
    cloud.work()
    assert waiting.host.driver.power_state(waiting.server_id) is PowerState.NOSTATE
    with target_cell(waiting.host.cell):
        assert drain.needs("host3") == drain.needs("host1") == 0
