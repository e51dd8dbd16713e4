"""A host goes down with guests on it: by priority, so many at once, each with its grace."""

from __future__ import annotations

import time

import pytest

from cells.context import target_cell
from compute.hosts import guest_batches, guest_shutdown
from compute.virt.base import PowerState
from tests.flow import stories
from tests.flow.going_down import ask, boot, flagged, is_off, one_host, order, priorities, read, step_of
from tests.flow.stories import act, lead, settled, states
from tests.machine import fair


@pytest.fixture
def host(cloud):
    return one_host(cloud)


def test_every_guest_that_is_on_goes_off_and_its_own_log_says_so(api, admin, cloud, host):
    on, paused, off, suspended = boot(api, cloud, 4)
    lead(api, cloud, paused, ("pause",))
    lead(api, cloud, off, ("stop",))
    lead(api, cloud, suspended, ("suspend",))
    with target_cell(host.cell):
        assert [one.uuid for one in guest_shutdown.paused("host1")] == [paused]

    request_id = ask(cloud)
    assert {line.state for line in read(cloud).values()} == {"waiting"}
    cloud.work()

    assert [states(cloud, one) for one in (on, paused, off)] == [("stopped", None)] * 3
    assert states(cloud, suspended) == ("suspended", None)
    assert host.driver.power_state(suspended) is PowerState.SUSPENDED
    for server_id in (on, paused, off, suspended):
        stories.true_to_the_guest(cloud, server_id)
    assert flagged(cloud) == {on}
    stopped = stories.last_action(admin, on)
    assert (stopped["action"], stopped["request_id"], stopped["user_id"]) == ("stop", request_id, "ann@desk")
    [event] = stopped["events"]
    assert (event["event"], event["host"], event["result"]) == ("compute_host_shutdown", "host1", "Success")
    assert event["details"].startswith("guest shut down in 0.")
    assert cloud.history(paused)[-1].outcome == "forced off at once: it was paused"
    assert {line.state for line in read(cloud, request_id).values()} == {"off"}
    assert set(read(cloud, request_id)) == {on, paused}
    settled(cloud)


def test_lower_priorities_go_first_and_equal_ones_together(api, cloud, host):
    last, first, second, also_first = priorities(api, cloud, 10, -5, 0, -5)
    host.driver.faults.shutdown(delay=1)
    with host.with_watcher():
        ask(cloud)
        cloud.work()
        lines = read(cloud)
        assert [lines[one].state for one in (first, also_first)] == ["shutting down"] * 2
        assert {lines[one].words for one in (second, last)} == {guest_batches.WAITS}
        cloud.work_until(lambda: is_off(cloud, first, also_first) and read(cloud)[second].words != guest_batches.WAITS)
        assert read(cloud)[last].state == "waiting"
        cloud.work_until(lambda: not host.waiting())
    assert order(cloud, "signal_shutdown")[:2] in ([first, also_first], [also_first, first])
    assert order(cloud, "signal_shutdown")[2:] == [second, last]
    settled(cloud)


def test_no_more_at_once_than_wanted(api, cloud, host):
    servers = boot(api, cloud, 5)
    host.driver.faults.shutdown(delay=0.15)
    most = 0
    with host.with_watcher():
        ask(cloud, at_once=2)

        def over():
            nonlocal most
            most = max(most, sum(line.state == "shutting down" for line in read(cloud).values()))
            return not host.waiting()

        cloud.work_until(over)
    assert most == 2
    assert is_off(cloud, *servers)
    settled(cloud)


def test_turns_taken_at_the_same_moment_are_no_more_than_wanted(api, cloud, host):
    servers = boot(api, cloud, 6)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(cloud, at_once=2)
        steps = [step_of(cloud, server_id).pk for server_id in servers]
        stories.at_once(6, lambda number: host.run(steps[number]))
        assert sorted(line.state for line in read(cloud).values()) == ["shutting down"] * 2 + ["waiting"] * 4
        ask(cloud, seconds=0)
        cloud.work_until(lambda: not host.waiting())
    assert is_off(cloud, *servers)
    settled(cloud)


def test_many_guests_take_as_long_as_the_slowest(api, cloud, host):
    servers = boot(api, cloud, 10)
    host.driver.faults.shutdown(delay=0.5)
    with host.with_watcher():
        ask(cloud)
        begun = time.monotonic()
        cloud.work_until(lambda: not host.waiting())
    assert time.monotonic() - begun < fair(5)
    assert is_off(cloud, *servers)


def test_each_has_its_own_grace_until_the_time_of_all_is_over(api, cloud, host):
    patient = cloud.boot(api, "patient", metadata={"termination_grace_period_seconds": "3600"})
    hasty = cloud.boot(api, "hasty", metadata={"termination_grace_period_seconds": "1"})
    later = cloud.boot(api, "later", metadata={"shutdown_priority": "1"})
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(cloud, seconds=2)
        cloud.work()
        assert read(cloud)[patient].seconds_left <= 2
        assert read(cloud)[hasty].seconds_left <= 1
        cloud.work_until(lambda: not host.waiting())
    assert cloud.history(hasty)[-1].outcome.startswith("forced off after 1 s")
    assert cloud.history(patient)[-1].outcome.startswith("forced off after 2 s")
    assert cloud.history(later)[-1].outcome == "forced off at once"


def test_asked_again_it_is_the_same_shutdown_with_the_new_words(api, cloud, host):
    first = cloud.boot(api, "first", metadata={"termination_grace_period_seconds": "3600"})
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        request_id = ask(cloud, at_once=3)
        cloud.work()
        second = cloud.boot(api, "second")
        assert ask(cloud, seconds=0) == request_id
        cloud.work_until(lambda: not host.waiting())
    assert set(read(cloud, request_id)) == {first, second}
    assert step_of(cloud, second).action.params["at_once"] == 3
    assert cloud.history(first)[-1].outcome.startswith("forced off after")
    assert "cut short by a request" in cloud.history(first)[-1].outcome
    assert [action.action for action in cloud.history(first)] == ["create", "stop"]
    settled(cloud)
    assert ask(cloud) == ""


@pytest.mark.parametrize("name", ["rescue", "error"])
def test_what_is_no_plain_server_goes_off_and_stays_what_it_is(name, api, admin, cloud, host):
    [server_id] = boot(api, cloud)
    if name == "rescue":
        assert act(api, server_id, {"rescue": None}).status_code == 200
        cloud.work()
    else:
        assert act(admin, server_id, {"os-resetState": {"state": "error"}}).status_code == 202
    was = states(cloud, server_id)
    ask(cloud)
    cloud.work()
    assert states(cloud, server_id) == was
    assert cloud.row(server_id).power_state == host.driver.power_state(server_id) == PowerState.SHUTDOWN
    assert flagged(cloud) == {server_id}
    settled(cloud)
