"""The watcher of a host's clocks: what it costs, and what it does when guests, or the hypervisor, do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compute.virt import shutdown_watcher as module
from compute.virt.base import Guest, Image, VirtError
from compute.virt.fake.driver import FakeDriver
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher
from tests.machine import fair

EMPTY = Image("empty", "raw")


def guest(name: str) -> Guest:
    """One without anything in it."""
    return Guest(uuid=name, name=name, display_name=name, vcpus=1, memory_mb=64, disk_gb=0, image=EMPTY)


class World:
    """A host with guests, and everything its watcher tells."""

    def __init__(self) -> None:
        self.driver = FakeDriver("host")
        self.told: list[tuple[str, ShutdownTimer]] = []
        self.watcher = ShutdownWatcher(self.driver, lambda uuid, timer: self.told.append((uuid, timer)))

    def boot(self, *names: str, **faults: Any) -> None:
        """Guests that answer the power button as ordered."""
        for name in names:
            self.driver.spawn(guest(name), lambda path: path.write_bytes(b"\0" * 512) and None)
            self.driver.faults.shutdown(uuid=name, **faults)

    def stop(self, name: str, seconds: float, interval: float = 10.0) -> ShutdownTimer:
        """What a step does before it waits, and once it does."""
        timer = self.driver.begin_shutdown(name, seconds, interval)
        assert timer is not None
        self.watcher.keep(name, timer)
        self.watcher.recheck(name)
        return timer

    def ends(self) -> list[tuple[str, str]]:
        """Who ended, in order, and how."""
        return [(uuid, timer.how) for uuid, timer in list(self.told) if not timer.runs]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.driver.close()  # what hangs ends
    world.watcher.close(10)


def until(what: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


def calls(world: World, verb: str) -> int:
    """How often it was called."""
    return [name for name, _ in world.driver.calls].count(verb)


def test_ends_are_told_once_each_in_their_order_the_moment_they_come(world):
    world.boot("first", delay=0.2)
    world.boot("second", delay=0.6)
    world.boot("never", ignore=True)
    world.watcher.start()
    timers = {name: world.stop(name, 1.2) for name in ("never", "second", "first")}
    until(lambda: len(world.ends()) == 3)
    assert world.ends() == [("first", "guest"), ("second", "guest"), ("never", "forced")]
    for name, timer in world.told:
        assert timer.deadline == timers[name].deadline
        if not timer.runs:
            expected = {"first": 0.2, "second": 0.6, "never": 1.2}[name]
            assert timer.ended - timer.begun == pytest.approx(expected, abs=fair(0.3))
    until(lambda: world.watcher.minded() == {})


def test_events_of_guests_nobody_shuts_down_cost_nothing(world):
    world.boot("slow", ignore=True)
    world.watcher.start()
    world.stop("slow", 60)
    until(lambda: not world.watcher._since and min(world.watcher._due.values()) > time.monotonic())
    seen, begun = len(world.driver.calls), time.monotonic()
    for number in range(20_000):
        world.watcher.look(f"other-{number}")
    assert time.monotonic() - begun < fair(2)
    time.sleep(0.1)
    assert len(world.driver.calls) == seen


def test_as_many_hung_guests_as_there_are_threads_delay_no_other_guest(world, monkeypatch):
    monkeypatch.setattr(module, "STUCK", 0.5)
    hung = [f"hung-{number}" for number in range(module.WORKERS + 4)]
    world.boot("well", "later", *hung, ignore=True)
    world.watcher.start()
    for name in hung:
        world.stop(name, 60, 0.2)
        world.driver.faults.delay("signal_shutdown", 60, name)
    until(lambda: calls(world, "signal_shutdown") >= 2 * len(hung))  # the second signal of each does not return
    timer = world.stop("well", 0.5)
    until(lambda: ("well", "forced") in world.ends())
    assert time.time() - timer.deadline < fair(2)
    assert len([one for one in threading.enumerate() if one.name.startswith("shutdown-hung")]) == len(hung)


def test_a_hypervisor_that_is_away_from_the_start_is_asked_until_it_answers(world):
    world.boot("old", "older", ignore=True)
    for name in ("old", "older"):
        world.driver.begin_shutdown(name, 0.3, 10)  # by a past life
    world.driver.go_away()
    world.watcher.start()
    time.sleep(0.5)
    assert world.told == []
    world.driver.come_back()
    until(lambda: len(world.ends()) == 2)
    assert sorted(world.ends()) == [("old", "forced"), ("older", "forced")]


def test_a_guest_whose_turns_fail_is_tried_again_and_said_once(world, monkeypatch, caplog):
    monkeypatch.setattr(module, "AGAIN", 0.05)
    world.boot("bad", "good", ignore=True)
    world.watcher.start()
    world.driver.faults.fail("power_off", times=3, uuid="bad", error=VirtError)
    bad, good = world.stop("bad", 0.3), world.stop("good", 0.3)
    until(lambda: len(world.ends()) == 2)
    assert world.ends() == [("good", "forced"), ("bad", "forced")]
    assert good.deadline - bad.deadline < 0.2
    assert [record.levelname for record in caplog.records if "turn_failed" in record.message] == ["ERROR"]


def test_who_listens_and_fails_is_told_again(monkeypatch):
    monkeypatch.setattr(module, "AGAIN", 0.05)
    world = World()
    failures, heard = [1, 2], []

    def tell(uuid: str, timer: ShutdownTimer) -> None:
        if failures:
            raise OSError(failures.pop())
        heard.append((uuid, timer.how))

    world.watcher = ShutdownWatcher(world.driver, tell)
    world.boot("a")
    world.watcher.start()
    world.stop("a", 60)
    until(lambda: heard)
    world.watcher.close(10)
    world.driver.close()
    assert heard[-1] == ("a", "guest")


def test_an_end_that_somebody_made_is_told_though_the_guest_is_gone_or_has_booted(world):
    for name in ("gone", "booted"):
        world.boot(name, ignore=True)
    world.watcher.start()
    for name in ("gone", "booted"):
        world.stop(name, 60)
        ended = world.driver.begin_shutdown(name, 0, 10)
        world.watcher.over(name, ended)
        if name == "gone":
            world.driver.destroy(name)
        else:
            world.driver.power_on(guest(name))
    until(lambda: len(world.ends()) >= 2)
    time.sleep(0.1)
    last = dict(world.told)
    assert {name: timer.words() for name, timer in last.items()} == dict.fromkeys(
        ("gone", "booted"), "forced off after 0 s: cut short by a request, 1 signal (acpi)"
    )


def test_one_that_is_closed_in_the_middle_of_a_turn_lets_go_and_leaves_the_clock(world):
    world.boot("slow", ignore=True)
    world.watcher.start()
    timer = world.stop("slow", 60, 0.1)
    world.driver.faults.delay("signal_shutdown", 60, "slow")
    until(lambda: calls(world, "signal_shutdown") >= 2)
    begun = time.monotonic()
    world.watcher.close()
    assert time.monotonic() - begun < fair(1)
    kept = world.driver.timer("slow")
    assert kept is not None
    assert (kept.begun, kept.deadline, kept.runs) == (timer.begun, timer.deadline, True)


def test_hundreds_of_guests_leave_nothing_behind(world):
    names = [f"guest-{number}" for number in range(300)]
    world.boot(*names)
    world.watcher.start()
    threads = threading.active_count()
    for name in names:
        world.stop(name, 60)
    until(lambda: len(dict(world.ends())) == len(names))
    until(lambda: not world.watcher.minded())
    for kept in (world.watcher._due, world.watcher._news, world.watcher._failures, world.watcher._since):
        assert not kept
    assert threading.active_count() <= threads + 2
