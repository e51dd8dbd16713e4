"""Deletes that give a guest its grace, join the grace of others, or end it."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

import pytest

from cells.context import target_cell
from compute.actions.delete import end_waiting
from compute.virt.base import HypervisorUnavailable, PowerState, VirtError
from compute.virt.shutdown_timer import ShutdownTimer
from tests.flow import lost_hosts, one_host, stories, two_hosts
from tests.flow.graces import (
    FORCED,
    HARD,
    OWN,
    ask,
    deaf,
    delete,
    is_gone,
    killed,
    length,
    nobody_waits,
    outcomes,
    signals,
    waits,
)
from tests.flow.stories import Killed
from tests.machine import fair


def test_a_delete_is_hard_as_in_nova(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        delete(api, cloud, server_id)
    is_gone(cloud, server_id)
    assert (outcomes(cloud, server_id), signals(host)) == ([("delete", "forced off at once")], 0)


@pytest.mark.parametrize(("own", "query", "seconds"), [
    (None, "?shutdown_type=SOFT", 60), (None, "?shutdown_type=soft&shutdown_timeout=7", 7), ("30", "", 30),
    (None, "?shutdown_timeout=7", 7), ("30", "?shutdown_type=SOFT", 30), ("30", "?shutdown_timeout=7", 7),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kept", [0, 3600])
def test_a_delete_with_grace_gives_it_also_to_servers_that_are_kept_for_a_while(
    kept, own, query, seconds, api, cloud, settings
):
    settings.RECLAIM_INSTANCE_INTERVAL = kept
    server_id, host = deaf(api, cloud, metadata={OWN: own} if own else {})
    with host.with_watcher():
        delete(api, cloud, server_id, query)
        [step] = host.waiting()
        assert length(step) == seconds
        assert cloud.row(server_id).task_state == ("soft-deleting" if kept else "deleting")
        shown = api.get(f"/servers/{server_id}").json()["server"]
        assert shown["OS-EXT-STS:task_state"] == cloud.row(server_id).task_state
        delete(api, cloud, server_id, "?shutdown_type=HARD")
        nobody_waits(cloud, host)
        assert outcomes(cloud, server_id) == [("delete", FORCED)]
    if kept:
        assert stories.states(cloud, server_id) == ("soft-delete", None)
        assert host.driver.power_state(server_id) is PowerState.SHUTDOWN
    else:
        is_gone(cloud, server_id)


@pytest.mark.parametrize("query", ["?shutdown_type=HARD", "?shutdown_timeout=0"])
def test_a_hard_delete_waits_for_no_guest_whatever_grace_its_server_has(query, api, cloud):
    server_id, host = deaf(api, cloud, **{OWN: 30})
    with host.with_watcher():
        delete(api, cloud, server_id, query)
    is_gone(cloud, server_id)
    assert signals(host) == 0


def test_a_forced_delete_waits_for_no_guest_whatever_grace_its_server_has(api, cloud):
    server_id, host = deaf(api, cloud, **{OWN: 30})
    with host.with_watcher():
        ask(api, cloud, server_id, {"forceDelete": None})
    is_gone(cloud, server_id)
    assert signals(host) == 0


def test_a_delete_with_grace_ends_with_what_its_guest_did(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(delay=0.3)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
        assert waits(host) == ["delete.terminate"]
        cloud.work_until(lambda: cloud.row(server_id).deleted)
    is_gone(cloud, server_id)
    assert outcomes(cloud, server_id)[0][1].startswith("guest shut down in ")


def test_a_stop_and_a_delete_that_joins_it_have_one_clock_and_one_outcome(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": {"shutdown_timeout": 1}})
        [stop] = host.waiting()
        delete(api, cloud, server_id, "?shutdown_type=SOFT&shutdown_timeout=3600")
        assert waits(host) == ["stop.power_off", "delete.terminate"]
        deadlines = [ShutdownTimer.load(step.timer).deadline for step in host.waiting()]
        assert deadlines == [ShutdownTimer.load(stop.timer).deadline] * 2
        cloud.work_until(lambda: cloud.row(server_id).deleted)
    is_gone(cloud, server_id)
    words = "forced off after N s, 1 signal (acpi)"
    assert outcomes(cloud, server_id) == [("stop", f"preempted: {words}"), ("delete", words)]


def test_a_delete_with_less_grace_does_not_shorten_the_clock_it_joins(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
        delete(api, cloud, server_id, "?shutdown_timeout=1")
        assert [length(step) for step in host.waiting()] == [60, 60]
        delete(api, cloud, server_id, "?shutdown_type=HARD")
        nobody_waits(cloud, host)
    is_gone(cloud, server_id)


def test_a_hard_delete_ends_the_grace_of_a_stop_now_and_both_say_so(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
        began = time.monotonic()
        delete(api, cloud, server_id)
        assert time.monotonic() - began < fair(2)
        nobody_waits(cloud, host)
    is_gone(cloud, server_id)
    assert outcomes(cloud, server_id) == [("stop", f"preempted: {FORCED}"), ("delete", FORCED)]


@pytest.mark.parametrize("kept", [0, 3600])
@pytest.mark.parametrize("how", ["delete", "forceDelete"])
def test_who_cannot_wait_for_a_delete_ends_it_now(how, kept, api, cloud, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = kept
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
        for query in ("", "?shutdown_type=SOFT", "?shutdown_timeout=1"):  # nothing more happens
            delete(api, cloud, server_id, query)
            assert [length(step) for step in host.waiting()] == [60]
        if how == "delete":
            delete(api, cloud, server_id, "?shutdown_type=HARD")
        else:
            ask(api, cloud, server_id, {"forceDelete": None})
        nobody_waits(cloud, host)
    if kept and how == "delete":
        assert stories.states(cloud, server_id) == ("soft-delete", None)
    else:
        is_gone(cloud, server_id)
    assert outcomes(cloud, server_id)[0][1].endswith(FORCED)
    assert len(outcomes(cloud, server_id)) == (2 if kept and how == "forceDelete" else 1)


def test_a_hurry_that_comes_while_the_delete_is_just_about_to_wait_is_not_lost(api, cloud, monkeypatch):
    server_id, host = deaf(api, cloud)
    api.delete(f"/servers/{server_id}?shutdown_type=SOFT")
    begin = host.driver.begin_shutdown

    def and_meanwhile(*asked):
        timer = begin(*asked)
        monkeypatch.undo()
        assert api.delete(f"/servers/{server_id}?shutdown_type=HARD").status_code == 204
        return timer

    monkeypatch.setattr(host.driver, "begin_shutdown", and_meanwhile)
    with host.with_watcher():
        cloud.work()
    is_gone(cloud, server_id)


def test_no_hurry_is_lost_whenever_it_comes(api, cloud):
    for _ in range(6):
        server_id, host = deaf(api, cloud)
        api.delete(f"/servers/{server_id}?shutdown_type=SOFT")
        both = [partial(host.run, stories.only_step(cloud).pk),
                partial(api.delete, f"/servers/{server_id}?shutdown_type=HARD")]  # fmt: skip
        with host.with_watcher():
            began = time.monotonic()
            stories.at_once(2, partial(_do, both))
            cloud.work_until(lambda uuid=server_id: cloud.row(uuid).deleted)
            assert time.monotonic() - began < 30  # of 60
        is_gone(cloud, server_id)


def test_a_hurry_that_comes_before_the_delete_began_is_not_lost(api, cloud):
    server_id, host = deaf(api, cloud)
    api.delete(f"/servers/{server_id}?shutdown_type=SOFT")
    api.delete(f"/servers/{server_id}?shutdown_type=HARD")
    with host.with_watcher():
        cloud.work()
    is_gone(cloud, server_id)
    assert (outcomes(cloud, server_id), signals(host)) == ([("delete", "forced off at once")], 0)


@pytest.mark.parametrize("was", ["stopped", "paused", "suspended"])
def test_a_guest_that_is_off_or_cannot_hear_keeps_no_delete_waiting(was, api, cloud):
    server_id = one_host.booted(api, cloud, was)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    before = signals(host)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
    is_gone(cloud, server_id)
    assert signals(host) == before


def test_a_server_that_is_just_being_built_is_deleted_without_a_wait(api, cloud):
    server_id = api.send("post", "/servers", cloud.body(**{OWN: 600})).json()["server"]["id"]
    cloud.schedule()
    host = cloud.host_of(server_id)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
        assert not host.waiting()
    assert cloud.row(server_id).deleted
    unplaced = api.send("post", "/servers", cloud.body(**{OWN: 600})).json()["server"]["id"]
    assert api.delete(f"/servers/{unplaced}?shutdown_type=SOFT").status_code == 204
    assert api.get(f"/servers/{unplaced}").status_code == 404


def test_a_server_without_a_host_is_deleted_at_once_whatever_its_grace(api, cloud):
    server_id = one_host.booted(api, cloud)
    one_host.done(api, cloud, server_id, {"shelve": HARD})
    assert cloud.row(server_id).host == ""
    assert api.delete(f"/servers/{server_id}?shutdown_type=SOFT").status_code == 204
    assert cloud.row(server_id).deleted


def test_a_delete_that_waits_on_a_host_that_is_gone_waits_no_more(api, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    host = cloud.hosts["host1"]
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        delete(admin, cloud, server_id, "?shutdown_type=SOFT")
        assert waits(host) == ["delete.terminate"]
    lost_hosts.gone_host(admin, cloud)
    with target_cell(host.cell):
        assert end_waiting() == 1
    assert cloud.row(server_id).deleted
    assert not host.waiting()


def test_a_delete_on_a_host_that_is_gone_waits_for_no_guest(api, admin, cloud):
    server_id = lost_hosts.lost(admin, cloud)
    assert admin.delete(f"/servers/{server_id}?shutdown_type=SOFT").status_code == 204
    assert cloud.row(server_id).deleted
    lost_hosts.back(cloud)
    cloud.work()
    one_host.is_deleted(cloud, server_id)


def test_a_guest_that_cannot_be_shut_down_is_deleted_all_the_same(api, admin, cloud):
    server_id, host = deaf(api, cloud)
    host.driver.faults.fail("power_off", times=1, error=VirtError)
    with host.with_watcher():
        delete(api, cloud, server_id)
    is_gone(cloud, server_id)
    assert outcomes(cloud, server_id) == [("delete", "could not be shut down: power_off failed as injected")]


def test_a_delete_with_grace_waits_for_a_hypervisor_that_comes_back(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("save_timer", times=2, error=HypervisorUnavailable)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
        for _ in range(3):
            stories.later(cloud)
            cloud.work()
        cloud.work_until(lambda: cloud.row(server_id).deleted)
    is_gone(cloud, server_id)


# -- deletes whose host is killed


@pytest.mark.parametrize("kept", [0, 3600])
@pytest.mark.parametrize("verb", ["save_timer", "signal_shutdown", "power_off"])
def test_a_host_killed_in_the_middle_of_a_grace_gives_what_is_left_of_it(verb, kept, api, cloud, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = kept
    server_id, host = deaf(api, cloud)
    host.driver.faults.fail(verb, error=Killed)
    with suppress(Killed):  # without a watcher the step itself pulls the plug, and dies of it
        delete(api, cloud, server_id, "?shutdown_timeout=1")
    assert host.restart() == 1
    with host.with_watcher():
        cloud.work_until(lambda: cloud.row(server_id).deleted or cloud.row(server_id).vm_state == "soft-delete")
    _ended(cloud, server_id, kept)


@pytest.mark.parametrize("kept", [0, 3600])
@pytest.mark.parametrize("when", one_host.MOMENTS)
def test_a_host_killed_while_a_delete_waits_or_as_it_goes_on_ends_right(when, kept, api, cloud, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = kept
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_timeout=1")
        assert len(host.waiting()) == 1
    assert host.restart() == 0  # who waits was not running
    api.delete(f"/servers/{server_id}?shutdown_type=HARD")
    killed(cloud, host, when)
    with host.with_watcher():
        nobody_waits(cloud, host)
    _ended(cloud, server_id, kept)


def test_a_host_killed_between_the_end_of_the_grace_and_that_of_the_guest_ends_right(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(delay=0.2)
    host.driver.faults.fail("destroy", error=Killed)
    with host.with_watcher():
        delete(api, cloud, server_id, "?shutdown_type=SOFT")
        with pytest.raises(Killed):
            cloud.work_until(lambda: cloud.row(server_id).deleted)
        assert host.restart() == 1
        cloud.work()
    is_gone(cloud, server_id)
    assert outcomes(cloud, server_id)[0][1].startswith("guest shut down in ")


def _do(what, number):
    return what[number]()


def _ended(cloud, server_id, kept):
    if not kept:
        is_gone(cloud, server_id)
        return
    assert stories.states(cloud, server_id) == ("soft-delete", None)
    assert cloud.host_of(server_id).driver.power_state(server_id) is PowerState.SHUTDOWN
    stories.settled(cloud)
