"""A host that goes down with guests on it is killed at every moment of that."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import guest_batches
from compute.models import Step
from compute.virt.base import HypervisorUnavailable, VirtError
from tests.flow import lost_hosts, stories, two_hosts
from tests.flow.going_down import ask, boot, due, flagged, is_off, one_host, priorities, read, step_of
from tests.flow.stories import Killed, act, settled, states

MOMENTS = ("before", "inside", "after the work")


@pytest.fixture
def host(cloud):
    return one_host(cloud)


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


@pytest.mark.parametrize("verb", ["timer", "save_timer", "signal_shutdown", "power_off"])
def test_a_host_killed_in_the_middle_of_a_verb(verb, api, cloud, host):
    server_id = cloud.boot(api, metadata={"termination_grace_period_seconds": "1"})
    host.driver.faults.shutdown(ignore=True)
    host.driver.faults.fail(verb, error=Killed)
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
    host.driver.faults.shutdown(delay=0.6)
    with host.with_watcher():
        ask(cloud)
        cloud.work()
        begun = step_of(cloud, first).timer["begun"]
    assert read(cloud)[second].words == guest_batches.WAITS
    host.restart()
    with host.with_watcher():
        cloud.work_until(lambda: not host.waiting())
    assert step_of(cloud, first).timer["begun"] == begun
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
    host.driver.faults.fail("save_timer", times=-1, error=VirtError, uuid=bad)
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
    host.driver.faults.fail("power_state", times=3, error=HypervisorUnavailable)
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
        cloud.hosts["host1"].driver.faults.fail("save_timer", error=Killed)
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
