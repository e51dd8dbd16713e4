"""A host is back, and so are the guests that went down with it: those that ran, the last ones first."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from cells.context import target_cell
from compute.actions.start_with_host import StartWithHost
from compute.hosts import drain, guest_shutdown
from compute.models import Service
from compute.power import sync
from compute.virt.base import GuestEvent, HypervisorUnavailable, PowerState
from tasks import boot_marker, restart_guests
from tests.flow import stories, two_hosts
from tests.flow.going_down import (
    ask,
    back,
    boot,
    come_back,
    drained,
    flagged,
    is_off,
    one_host,
    order,
    priorities,
    process,
    step_of,
)
from tests.flow.stories import Killed, act, lead, settled, states

MOMENTS = ("before", "inside", "after the work")


@pytest.fixture
def host(cloud, settings, tmp_path):
    settings.RESUME_GUESTS, settings.HOST_STATE = True, tmp_path
    yield one_host(cloud)
    restart_guests._due.clear()


def down(cloud, *servers):
    ask(cloud)
    cloud.work()
    assert is_off(cloud, *servers)


def test_who_ran_runs_again_in_the_reverse_order_and_the_log_says_so(api, admin, cloud, host):
    first, last, middle = priorities(api, cloud, -1, 7, 0)
    [off] = boot(api, cloud)
    lead(api, cloud, off, ("stop",))
    down(cloud, first, last, middle)
    host.driver.calls.clear()
    assert back(cloud) == 3
    assert order(cloud, "power_on") == [last, middle, first]
    for server_id in (first, middle, last):
        assert states(cloud, server_id) == ("active", None)
        stories.true_to_the_guest(cloud, server_id)
    assert states(cloud, off) == ("stopped", None)
    started = stories.last_action(admin, first)
    assert (started["action"], started["message"]) == ("start", None)
    [event] = started["events"]
    assert (event["event"], event["details"]) == ("compute_host_startup", "started again with its host")
    assert not flagged(cloud)
    assert back(cloud) == 0
    settled(cloud)


def test_without_the_setting_they_stay_off_for_good(api, cloud, host, settings):
    [server_id] = boot(api, cloud)
    down(cloud, server_id)
    settings.RESUME_GUESTS = False
    assert back(cloud) == 0
    settings.RESUME_GUESTS = True
    assert back(cloud) == 0
    assert states(cloud, server_id) == ("stopped", None)
    settled(cloud)


def test_a_server_in_rescue_is_in_rescue_again(api, cloud, host):
    [server_id] = boot(api, cloud)
    act(api, server_id, {"rescue": None})
    cloud.work()
    down(cloud, server_id)
    assert back(cloud) == 1
    assert states(cloud, server_id) == ("rescued", None)
    assert host.driver.power_state(server_id) is PowerState.RUNNING
    assert cloud.row(server_id).power_state == PowerState.RUNNING
    settled(cloud)


def test_guests_that_went_down_with_the_machine_are_recorded_and_started(api, cloud, host):
    running, stopped_itself = boot(api, cloud, 2)
    host.driver.power_off(running)
    assert back(cloud, booted=True) == 1
    assert [action.action for action in cloud.history(running)] == ["create", "stop", "start"]
    assert "it went down with its host" in cloud.history(running)[1].outcome
    assert states(cloud, running) == ("active", None)
    stories.true_to_the_guest(cloud, running)
    host.driver.power_off_from_inside(stopped_itself)
    assert back(cloud) == 0, "a worker that was only away starts no guest"
    assert states(cloud, stopped_itself) == ("stopped", None)
    settled(cloud)


def test_guests_that_somebody_turned_off_as_the_cell_was_away_come_back_though_the_worker_lived(api, cloud, host):
    """The command did, as the machine was to go down; then the cell was back, and after all it was not."""
    found, told = boot(api, cloud, 2)
    back(cloud)
    boot_marker.expect_boot(django_settings.HOST_STATE)
    for server_id in (found, told):
        host.driver.power_off(server_id, timeout=5)
    with target_cell(host.cell):
        event = GuestEvent(told, PowerState.SHUTDOWN, "shutdown")
        sync.record_event("host1", host.driver, event, booted=restart_guests.with_host(host.driver))
        assert restart_guests.sync(process(host)) == 1
    assert flagged(cloud) == {found, told}
    assert come_back(cloud) == 0
    restart_guests.when_open()
    assert come_back(cloud) == 2
    assert not restart_guests.with_host(host.driver)
    settled(cloud)


def test_a_machine_that_went_down_before_every_turn_had_come_is_the_end_of_the_shutdown(api, cloud, host):
    first, second = priorities(api, cloud, 1, 2)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(cloud)
        cloud.work()
        with target_cell(host.cell):
            assert guest_shutdown.going_on("host1")
    for server_id in (first, second):  # the plug
        host.driver.force_off(server_id)
    host.restart()
    back(cloud, booted=True)
    with host.with_watcher():
        cloud.work_until(lambda: not host.waiting())
    assert "the host went down before its turn" in [action.outcome for action in cloud.history(second)]
    come_back(cloud)
    for server_id in (first, second):
        assert states(cloud, server_id) == ("active", None)
        stories.true_to_the_guest(cloud, server_id)
    settled(cloud)


def test_a_guest_that_cannot_be_started_stays_off_and_says_why(api, cloud, host):
    bad, good = priorities(api, cloud, 2, 1)
    down(cloud, bad, good)
    host.driver.faults.fail("power_on", times=1, uuid=bad)
    assert back(cloud) == 2
    assert (states(cloud, bad), states(cloud, good)) == (("stopped", None), ("active", None))
    assert cloud.row(bad).fault is not None
    assert cloud.history(bad)[-1].message == "Error"
    assert not flagged(cloud)
    settled(cloud)


def test_a_hypervisor_that_is_away_is_waited_for(api, cloud, host):
    [server_id] = boot(api, cloud)
    down(cloud, server_id)
    host.driver.faults.fail("power_on", times=2, error=HypervisorUnavailable)
    back(cloud)
    for _ in range(3):
        stories.later(cloud)
        cloud.work()
    assert states(cloud, server_id) == ("active", None)


def test_a_host_that_drains_again_begins_them_when_it_takes_work(api, cloud, host):
    [server_id] = boot(api, cloud)
    down(cloud, server_id)
    drained(cloud)
    assert back(cloud) == 0
    assert come_back(cloud) == 0
    drained(cloud, wanted=False)
    assert come_back(cloud) == 1
    assert come_back(cloud) == 0
    assert states(cloud, server_id) == ("active", None)


def test_a_worker_that_is_restarted_in_the_middle_ends_what_was_asked_for(api, cloud, host):
    """Its machine still goes down: who is off comes back in the life after this one."""
    first, second = priorities(api, cloud, 1, 2)
    ask(cloud)
    host.run(step_of(cloud, first).pk)
    assert back(cloud) == 0
    assert is_off(cloud, first, second)
    assert come_back(cloud) == 0
    assert back(cloud) == 2


def test_an_undrained_host_has_back_also_who_was_still_on_the_way_off(api, cloud, host):
    first, second = boot(api, cloud, 2)
    host.driver.faults.shutdown(delay=0.4)
    with host.with_watcher():
        with target_cell(host.cell):
            service = Service.objects.get(host="host1")
            drain.request(service, by="ann")
        ask(cloud, at_once=1)
        cloud.work()
        with target_cell(host.cell):
            drain.withdraw(service)
        restart_guests.when_open()
        assert come_back(cloud) == 0
        cloud.work_until(lambda: not host.waiting())
    assert come_back(cloud) == 1
    assert [states(cloud, each) for each in (first, second)] == [("active", None)] * 2
    settled(cloud)


def test_who_the_command_turned_off_while_the_cell_was_away_comes_back(api, cloud, host):
    """Its host had been asked before that."""
    [asked] = boot(api, cloud)
    ask(cloud)
    host.driver.power_off(asked, timeout=5)
    with target_cell(host.cell):
        assert sync.sync("host1", host.driver) == 0
    cloud.work()
    assert states(cloud, asked) == ("stopped", None)
    assert cloud.history(asked)[-1].outcome.startswith("guest shut down in 0.")
    assert flagged(cloud) == {asked}
    assert back(cloud) == 1


@pytest.mark.parametrize("when", MOMENTS)
def test_a_host_killed_while_it_starts_a_guest(when, api, cloud, host):
    first, second = priorities(api, cloud, 1, 2)
    down(cloud, first, second)
    with target_cell(host.cell):
        assert guest_shutdown.start_guests("host1") == 2
    two_hosts.killed(cloud, step_of(cloud, second, StartWithHost.__name__), when)
    with target_cell(host.cell):
        assert guest_shutdown.start_guests("host1") == 0, "each is brought back once"
    cloud.work()
    for server_id in (first, second):
        assert states(cloud, server_id) == ("active", None)
        stories.true_to_the_guest(cloud, server_id)
        assert "boots=2" in host.driver.console_output(server_id)
        assert "boots=3" not in host.driver.console_output(server_id)
    settled(cloud)


def test_a_host_killed_in_the_middle_of_the_verb(api, cloud, host):
    [server_id] = boot(api, cloud)
    down(cloud, server_id)
    host.driver.faults.fail("power_on", error=Killed)
    with pytest.raises(Killed):
        back(cloud)
    host.restart()
    cloud.work()
    assert states(cloud, server_id) == ("active", None)
    settled(cloud)


def test_a_user_who_is_quicker_is_obeyed(api, cloud, host):
    deleted, started = boot(api, cloud, 2)
    down(cloud, deleted, started)
    with target_cell(host.cell):
        guest_shutdown.start_guests("host1")
    assert act(api, started, {"os-start": None}).status_code == 409
    assert api.delete(f"/servers/{deleted}").status_code == 204
    cloud.work()
    assert cloud.row(deleted).deleted
    assert states(cloud, started) == ("active", None)
    settled(cloud)
