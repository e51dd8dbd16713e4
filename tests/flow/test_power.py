"""The power state on record is the true one: events, the sync, and hosts that boot."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.models import Instance
from compute.power import reconcile
from compute.power import sync as power_sync
from compute.power.reconcile import PowerMismatch
from compute.virt.base import GuestEvent, PowerState
from tasks.periodic import tasks_of
from tests.flow import stories
from tests.flow.powers import notice, sync, tasks


def test_a_guest_that_powers_itself_off_is_shut_off_with_an_action_in_its_history(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.power_off_from_inside(server_id)
    notice(cloud, server_id)
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("SHUTOFF", 4)
    stopped = stories.last_action(api, server_id)
    assert (stopped["action"], stopped["message"], stopped["user_id"]) == ("stop", None, "")
    assert [(e["event"], e["result"]) for e in stopped["events"]] == [("compute_power_sync", "Success")]
    stories.settled(cloud)
    stories.lead(api, cloud, server_id, ("start",))


def test_the_same_event_twice_is_recorded_once(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.power_off_from_inside(server_id)
    for _ in range(3):
        notice(cloud, server_id)
    assert tasks(cloud, server_id) == ["create", "stop"]


def test_every_change_nobody_asked_for_can_be_looked_up(api, cloud):
    server_id = cloud.boot(api)
    for _ in range(2):
        cloud.host_of(server_id).driver.power_off_from_inside(server_id)
        notice(cloud, server_id)
        stories.lead(api, cloud, server_id, ("start",))
    listed = api.get(f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
    assert len({action["request_id"] for action in listed if action["action"] == "stop"}) == 2


def test_a_guest_that_crashed_is_shut_off(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.crash(server_id)
    notice(cloud, server_id, PowerState.CRASHED)
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert cloud.row(server_id).power_state == PowerState.CRASHED
    stories.lead(api, cloud, server_id, ("start",))
    stories.true_to_the_guest(cloud, server_id)


def test_an_event_during_a_task_is_left_to_the_task(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"os-stop": None})
    cloud.host_of(server_id).driver.power_off_from_inside(server_id)
    notice(cloud, server_id)
    assert stories.states(cloud, server_id) == ("active", "powering-off")
    cloud.work()
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert tasks(cloud, server_id) == ["create", "stop"]


def test_an_event_that_comes_late_does_not_undo_what_came_after_it(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    notice(cloud, server_id, PowerState.RUNNING)  # from when it was started
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert tasks(cloud, server_id) == ["create", "stop"]


def test_an_event_of_a_guest_that_is_no_server_of_the_host_is_ignored(api, cloud):
    server_id = cloud.boot(api)
    there = cloud.host_of(server_id)
    other = next(host for host in cloud.hosts.values() if host is not there)
    for host in (there, other):
        with target_cell(host.cell):
            power_sync.record_event(host.name, host.driver, GuestEvent("unknown", PowerState.SHUTDOWN))
            power_sync.record_event("elsewhere", host.driver, GuestEvent(server_id, PowerState.SHUTDOWN))
    assert stories.states(cloud, server_id) == ("active", None)


def test_an_event_while_the_hypervisor_is_away_is_left_to_the_sync(api, cloud):
    server_id = cloud.boot(api)
    driver = cloud.host_of(server_id).driver
    driver.power_off_from_inside(server_id)
    driver.go_away()
    notice(cloud, server_id)
    assert stories.states(cloud, server_id) == ("active", None)
    driver.come_back()
    assert sync(cloud, server_id) == 1
    assert stories.states(cloud, server_id) == ("stopped", None)


def test_the_sync_finds_what_no_event_told(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.power_off_from_inside(server_id)
    assert sync(cloud, server_id) == 1
    assert sync(cloud, server_id) == 0
    stories.true_to_the_guest(cloud, server_id)
    assert tasks(cloud, server_id) == ["create", "stop"]


@pytest.mark.parametrize(
    ("lead", "change", "end"),
    [
        ((), lambda driver, uuid: driver.pause(uuid), "paused"),
        (("pause",), lambda driver, uuid: driver.unpause(uuid), "active"),
        (("pause",), lambda driver, uuid: driver.power_off(uuid), "stopped"),
    ],
    ids=["paused", "unpaused", "off"],
)
def test_what_an_operator_did_on_the_host_is_found(lead, change, end, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, lead)
    change(cloud.host_of(server_id).driver, server_id)
    assert sync(cloud, server_id) == 1
    assert stories.states(cloud, server_id) == (end, None)
    stories.true_to_the_guest(cloud, server_id)


def test_a_guest_that_went_off_during_a_task_is_found_when_the_task_is_over(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.power_off_from_inside(server_id)
    stories.lead(api, cloud, server_id, ("create image",))
    assert cloud.row(server_id).power_state == PowerState.SHUTDOWN  # seen, and not the task's business
    assert sync(cloud, server_id) == 1
    assert stories.states(cloud, server_id) == ("stopped", None)


def test_a_task_that_runs_during_the_sync_is_newer_than_what_the_sync_saw(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    look = host.driver.guests

    def looks_while_somebody_stops_it():
        seen = look()
        stories.lead(api, cloud, server_id, ("stop",))
        return seen

    host.driver.power_off_from_inside(server_id)
    notice(cloud, server_id)
    stories.lead(api, cloud, server_id, ("start",))
    host.driver.guests = looks_while_somebody_stops_it
    sync(cloud, server_id)
    assert stories.states(cloud, server_id) == ("stopped", None)


def test_a_server_whose_guest_is_missing_keeps_its_record(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.destroy(server_id)
    assert sync(cloud, server_id) == 0
    assert stories.states(cloud, server_id) == ("active", None)


def test_servers_that_are_not_built_deleted_or_elsewhere_are_no_business_of_the_sync(api, cloud):
    gone = cloud.boot(api)
    api.delete(f"/servers/{gone}")
    cloud.work()
    asked = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    cloud.schedule()
    for server_id in (gone, asked):
        assert sync(cloud, server_id) == 0
    assert stories.states(cloud, asked) == ("building", "spawning")


def test_guests_that_should_run_are_to_be_back_when_the_host_booted(api, cloud):
    server_id, off = cloud.boot(api), cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.power_off(server_id, timeout=5)
    stories.lead(api, cloud, off, ("stop",))
    assert sync(cloud, server_id, booted=True) == 1
    assert (stories.states(cloud, server_id), cloud.row(server_id).resumes_with_host) == (("stopped", None), True)
    assert "it went down with its host; guest shut down in 0.0 s" in cloud.history(server_id)[-1].outcome
    assert sync(cloud, off, booted=True) == 0
    assert not cloud.row(off).resumes_with_host


def test_a_power_off_that_nobody_asked_for_leaves_a_busy_record_alone(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        seen = Instance.objects.get(uuid=server_id)
    stories.act(api, server_id, {"pause": None})
    with target_cell(host.cell):
        look = PowerMismatch(seen, PowerState.SHUTDOWN, "seen before the task began")
        reconcile.reconcile(host.name, host.driver, [look], found_by="sync", booted=False)
    assert stories.states(cloud, server_id) == ("active", "pausing")


@pytest.mark.parametrize(("seconds", "rounds"), [(60.0, [60.0]), (1.0, [1.0]), (0.0, []), (-1.0, [])])
def test_the_sync_comes_round_as_often_as_the_operator_says(seconds, rounds, settings):
    settings.SYNC_POWER_STATE_INTERVAL = seconds
    assert [one.every for one in tasks_of("host") if one.name == "power_sync"] == rounds
