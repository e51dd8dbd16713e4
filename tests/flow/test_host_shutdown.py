"""A host goes down with guests on it: by priority, so many at once, each with its grace, whoever races or dies."""

from __future__ import annotations

import time

import pytest

from cells.context import target_cell
from compute import draining, host_guests, recovery, turns
from compute.models import Service, Step
from compute.virt.base import HypervisorUnavailable, PowerState, VirtError
from tests.flow import lost_hosts, stories, two_hosts
from tests.flow.going_down import ask, drained, flagged, is_off, one_host, order, read, step_of
from tests.flow.stories import Killed, act, lead, settled, states

MOMENTS = ("before", "inside", "after the work")


@pytest.fixture
def host(cloud):
    return one_host(cloud)


def boot(api, cloud, count=1, **more):
    return [cloud.boot(api, f"s{number}", **more) for number in range(count)]


def priorities(api, cloud, *wanted):
    return [cloud.boot(api, f"p{each}", metadata={"shutdown_priority": str(each)}) for each in wanted]


# -- who, in which order, with which words


def test_every_guest_that_is_on_goes_off_and_its_own_log_says_so(api, admin, cloud, host):
    on, paused, off, suspended = boot(api, cloud, 4)
    lead(api, cloud, paused, ("pause",))
    lead(api, cloud, off, ("stop",))
    lead(api, cloud, suspended, ("suspend",))
    with target_cell(host.cell):
        assert [one.uuid for one in host_guests.paused("host1")] == [paused]

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
    host.driver.orders.shutdown(delay=1)
    with host.with_keeper():
        ask(cloud)
        cloud.work()
        lines = read(cloud)
        assert [lines[one].state for one in (first, also_first)] == ["shutting down"] * 2
        assert {lines[one].words for one in (second, last)} == {turns.WAITS}
        cloud.work_until(lambda: is_off(cloud, first, also_first) and read(cloud)[second].words != turns.WAITS)
        assert read(cloud)[last].state == "waiting"
        cloud.work_until(lambda: not host.waiting())
    assert order(cloud, "signal_shutdown")[:2] in ([first, also_first], [also_first, first])
    assert order(cloud, "signal_shutdown")[2:] == [second, last]
    settled(cloud)


def test_no_more_at_once_than_wanted(api, cloud, host):
    servers = boot(api, cloud, 5)
    host.driver.orders.shutdown(delay=0.15)
    most = 0
    with host.with_keeper():
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
    host.driver.orders.shutdown(ignore=True)
    with host.with_keeper():
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
    host.driver.orders.shutdown(delay=0.5)
    with host.with_keeper():
        ask(cloud)
        begun = time.monotonic()
        cloud.work_until(lambda: not host.waiting())
    assert time.monotonic() - begun < 5
    assert is_off(cloud, *servers)


def test_each_has_its_own_grace_until_the_time_of_all_is_over(api, cloud, host):
    patient = cloud.boot(api, "patient", metadata={"termination_grace_period_seconds": "3600"})
    hasty = cloud.boot(api, "hasty", metadata={"termination_grace_period_seconds": "1"})
    later = cloud.boot(api, "later", metadata={"shutdown_priority": "1"})
    host.driver.orders.shutdown(ignore=True)
    with host.with_keeper():
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
    host.driver.orders.shutdown(ignore=True)
    with host.with_keeper():
        request_id = ask(cloud, at_once=3)
        cloud.work()
        second = cloud.boot(api, "second")
        assert ask(cloud, seconds=0) == request_id
        cloud.work_until(lambda: not host.waiting())
    assert set(read(cloud, request_id)) == {first, second}
    assert step_of(cloud, second).action.params["at_once"] == 3
    assert cloud.history(first)[-1].outcome.startswith("forced off after")
    assert "somebody could not wait" in cloud.history(first)[-1].outcome
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


# -- with others at the same time


@pytest.mark.parametrize("closed", [False, True], ids=["open", "drained"])
def test_stop_delete_and_the_hosts_shutdown_have_one_clock_and_one_outcome(closed, api, admin, cloud, host):
    server_id = cloud.boot(api, metadata={"termination_grace_period_seconds": "2"})
    host.driver.orders.shutdown(ignore=True)
    with host.with_keeper():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        assert api.delete(f"/servers/{server_id}").status_code == 204
        cloud.work()
        if closed:
            drained(cloud)
        ask(cloud)
        cloud.work()
        assert len(host.waiting()) >= 2
        cloud.work_until(lambda: not host.waiting() and not cloud.queued())
    ended = [action.outcome for action in cloud.history(server_id)[1:]]
    assert len(ended) == 3
    assert all("forced off after 2 s" in outcome for outcome in ended), ended
    assert cloud.row(server_id).deleted
    assert not flagged(cloud)
    settled(cloud)


def test_a_stop_that_waits_is_joined_and_stays_the_users(api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.orders.shutdown(delay=0.4)
    with host.with_keeper():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        [stop] = host.waiting()
        ask(cloud)
        cloud.work()
        clocks = [step.clock for step in host.waiting()]
        assert len(clocks) == 2
        assert {(clock["begun"], clock["deadline"]) for clock in clocks} == {
            (stop.clock["begun"], stop.clock["deadline"])
        }
        cloud.work_until(lambda: not host.waiting())
    stop_words, down_words = [action.outcome for action in cloud.history(server_id)[1:]]
    assert stop_words == down_words
    assert down_words.startswith("guest shut down in 0.")
    assert states(cloud, server_id) == ("stopped", None)
    assert not flagged(cloud), "its user wants it off"
    settled(cloud)


@pytest.mark.parametrize("name", ["reboot", "rescue"])
def test_one_that_goes_off_only_to_come_on_again_goes_off_after_that(name, api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.orders.shutdown(delay=0.5)
    body = {"reboot": {"type": "SOFT"}} if name == "reboot" else {"rescue": None}
    with host.with_keeper():
        assert act(api, server_id, body).status_code in (200, 202)
        cloud.work()
        assert len(host.waiting()) == 1
        ask(cloud)
        cloud.work()
        assert step_of(cloud, server_id).details.startswith(f"waits for {name[:5]}")
        cloud.work_until(lambda: states(cloud, server_id)[1] is None)
        assert host.driver.power_state(server_id) is PowerState.RUNNING
        due(host)
        cloud.work_until(lambda: not host.waiting())
    assert is_off(cloud, server_id)
    assert states(cloud, server_id) == ("stopped" if name == "reboot" else "rescued", None)
    assert flagged(cloud) == {server_id}
    settled(cloud)


def test_nobody_starts_a_guest_that_goes_off_with_its_host(api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.orders.shutdown(delay=0.4)
    with host.with_keeper():
        ask(cloud)
        cloud.work()
        for body in ({"os-start": None}, {"os-stop": None}, {"reboot": {"type": "SOFT"}}):
            assert act(api, server_id, body).status_code == 409
        cloud.work_until(lambda: not host.waiting())
    assert states(cloud, server_id) == ("stopped", None)


def test_a_server_deleted_while_it_goes_off_is_deleted(api, cloud, host):
    server_id, other = boot(api, cloud, 2)
    host.driver.orders.shutdown(ignore=True)
    with host.with_keeper():
        ask(cloud, at_once=1)
        cloud.work()
        assert api.delete(f"/servers/{server_id}").status_code == 204
        cloud.work_until(lambda: cloud.row(server_id).deleted and read(cloud)[other].state == "shutting down")
        assert api.delete(f"/servers/{other}").status_code == 204
        cloud.work_until(lambda: cloud.row(other).deleted and not host.waiting())
    assert not flagged(cloud)
    settled(cloud)


def test_one_deleted_before_its_turn_needs_none(api, cloud, host):
    server_id = cloud.boot(api)
    ask(cloud)
    down = step_of(cloud, server_id)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    for _, step in cloud.queued():
        if step.pk != down.pk:
            host.run(step.pk)
    assert cloud.row(server_id).deleted
    cloud.work()
    assert step_of(cloud, server_id).details == "deleted meanwhile"
    settled(cloud)


def test_what_goes_on_with_a_server_ends_first(api, cloud, host):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    ask(cloud)
    down = step_of(cloud, server_id)
    host.run(down.pk)
    assert step_of(cloud, server_id).details == "waits for pausing to end"
    assert host.driver.power_state(server_id) is PowerState.RUNNING
    cloud.work()
    assert states(cloud, server_id) == ("paused", None)
    due(host)
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    settled(cloud)


def test_a_request_that_a_drained_host_does_not_begin_is_not_waited_for(api, cloud, host):
    server_id = cloud.boot(api)
    drained(cloud)
    act(api, server_id, {"os-stop": None})
    ask(cloud)
    host.run(step_of(cloud, server_id).pk)
    assert (states(cloud, server_id), is_off(cloud, server_id)) == (("active", "powering-off"), True)
    drained(cloud, wanted=False)
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    assert not flagged(cloud)
    settled(cloud)


def test_whatever_is_asked_of_it_afterwards_it_does_not_come_back_by_itself(api, cloud, host):
    started, snapped, deleted = boot(api, cloud, 3)
    ask(cloud)
    cloud.work()
    assert flagged(cloud) == {started, snapped, deleted}
    lead(api, cloud, started, ("start",))
    act(api, snapped, {"createImage": {"name": "x"}})
    api.delete(f"/servers/{deleted}")
    cloud.work()
    assert flagged(cloud) == set()
    settled(cloud)


def test_an_undrain_leaves_on_who_has_not_begun(api, cloud, host):
    first, second = boot(api, cloud, 2)
    host.driver.orders.shutdown(delay=0.3)
    with host.with_keeper(), target_cell(host.cell):
        service = Service.objects.get(host="host1")
        draining.ask(service, by="ann")
        ask(cloud, at_once=1)
        cloud.work()
        assert draining.needs("host1") == 2
        draining.undo(service)
        assert not host_guests.going_on("host1")
        assert host_guests.has_open("host1")
        cloud.work_until(lambda: not host.waiting())
    assert (states(cloud, first), states(cloud, second)) == (("stopped", None), ("active", None))
    assert cloud.history(second)[-1].outcome == "the host takes work again"
    assert flagged(cloud) == {first}
    settled(cloud)


# -- killed


@pytest.mark.parametrize("when", MOMENTS)
def test_a_host_killed_while_its_guest_goes_off(when, api, cloud, host):
    server_id, other = boot(api, cloud, 2)
    ask(cloud, at_once=1)
    two_hosts.killed(cloud, step_of(cloud, server_id), when)
    cloud.work()
    for each in (server_id, other):
        assert states(cloud, each) == ("stopped", None)
        stories.true_to_the_guest(cloud, each)
    assert flagged(cloud) == {server_id, other}
    settled(cloud)


@pytest.mark.parametrize("verb", ["clock", "keep_clock", "signal_shutdown", "power_off"])
def test_a_host_killed_in_the_middle_of_a_verb(verb, api, cloud, host):
    server_id = cloud.boot(api, metadata={"termination_grace_period_seconds": "1"})
    host.driver.orders.shutdown(ignore=True)
    host.driver.orders.fail(verb, error=Killed)
    ask(cloud)
    with pytest.raises(Killed):
        cloud.work()
    assert host.restart() == 1
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    assert cloud.history(server_id)[-1].outcome.startswith("forced off after 1 s")
    assert flagged(cloud) == {server_id}
    settled(cloud)


def test_a_host_killed_while_guests_wait_goes_on_where_it_was(api, cloud, host):
    first, second = priorities(api, cloud, 1, 2)
    host.driver.orders.shutdown(delay=0.6)
    with host.with_keeper():
        ask(cloud)
        cloud.work()
        begun = step_of(cloud, first).clock["begun"]
    assert read(cloud)[second].words == turns.WAITS
    host.restart()
    with host.with_keeper():
        cloud.work_until(lambda: not host.waiting())
    assert step_of(cloud, first).clock["begun"] == begun
    assert is_off(cloud, first, second)
    assert flagged(cloud) == {first, second}
    settled(cloud)


def test_a_wake_that_is_lost_is_made_up_for(api, cloud, host):
    first, second = priorities(api, cloud, 1, 2)
    ask(cloud)
    host.run(step_of(cloud, second).pk)
    waits = step_of(cloud, second)
    assert (waits.state, waits.not_before is not None) == ("waiting", True)
    with target_cell(host.cell):
        Step.objects.filter(server_id=first).update(state="cancelled")
        Step.objects.filter(server_id=first).first().action.delete()
        due(host)
    cloud.work()
    assert states(cloud, second) == ("stopped", None)


def test_a_guest_that_cannot_be_turned_off_does_not_hold_the_others_up(api, cloud, host):
    bad, good = priorities(api, cloud, 1, 2)
    host.driver.orders.fail("keep_clock", times=-1, error=VirtError, uuid=bad)
    ask(cloud)
    for _ in range(10):
        stories.later(cloud)
        cloud.work()
    assert states(cloud, good) == ("stopped", None)
    assert states(cloud, bad) == ("active", None)
    assert cloud.history(bad)[-1].message == "Error"
    assert cloud.row(bad).fault is not None
    assert flagged(cloud) == {good}
    settled(cloud)


def test_a_hypervisor_that_is_away_is_waited_for(api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.orders.fail("power_state", times=3, error=HypervisorUnavailable)
    ask(cloud)
    for _ in range(4):
        stories.later(cloud)
        cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    settled(cloud)


def test_a_server_that_was_moved_before_its_turn_is_left_alone_where_it_is(api, admin, cloud, host):
    cloud.add_host("host3", "cell1")
    server_id = cloud.boot(admin, availability_zone="nova:host1")
    ask(cloud)
    down = step_of(cloud, server_id)
    assert act(admin, server_id, {"os-migrateLive": {"host": "host3", "block_migration": "auto"}}).status_code == 202
    for _ in range(20):
        for cell, step in cloud.queued():
            if step.pk != down.pk:
                cloud._deliver(cell, step)
    assert cloud.row(server_id).host == "host3"
    cloud.work()
    assert step_of(cloud, server_id).details == "lives on host3"
    assert states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    settled(cloud)


@pytest.mark.parametrize("when", ["before", "inside", "taken"])
def test_a_host_that_never_comes_back_up_leaves_its_servers_to_an_evacuation(when, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    ask(cloud)
    if when == "inside":
        two_hosts.claim(cloud, step_of(cloud, server_id))
    if when == "taken":
        cloud.hosts["host1"].driver.orders.fail("keep_clock", error=Killed)
        with pytest.raises(Killed):
            cloud.work()
        assert states(cloud, server_id) == ("active", "powering-off")
    lost_hosts.gone_host(admin, cloud)
    answer = lost_hosts.evacuate(admin, server_id)
    assert answer.status_code == 200, answer.content
    lost_hosts.work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    lost_hosts.back(cloud)
    cloud.work()
    lost_hosts.is_at(cloud, server_id, "host3")
    assert step_of(cloud, server_id).details == "lives on host3"


def due(host):
    """What the relay does when their time is over."""
    with target_cell(host.cell):
        Step.objects.filter(state="waiting", clock__isnull=True).update(not_before="2020-01-01T00:00:00Z")
        recovery.relay()
