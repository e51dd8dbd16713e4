"""A guest gets its grace: one clock, whoever asks and whoever dies. One suite, run on the fake driver and on QEMU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from compute.virt import load
from compute.virt.base import Driver, Guest, GuestNotFound, HypervisorUnavailable, PowerState
from compute.virt.shutdown_timer import CUT_SHORT, ShutdownTimer
from deploy.local.libvirtd import LibvirtHost
from tests.machine import fair
from tests.virt.conftest import GUESTS, Bench, wait_until

LATE = 1.0  # seconds a plug may be pulled after its deadline, on a busy machine
STRANGER = "00000000-0000-4000-8000-000000000000"
SHORT, EVERY = 1.0, 0.3  # seconds
LONG = 60.0


@dataclass
class Ward(Bench):
    """A bench that can be visited by other processes, with guests that behave in a known way."""

    options: dict[str, str] = field(default_factory=dict)

    def another_driver(self) -> Driver:
        """As another process of the same host has it."""
        return load("libvirt" if self.is_real else "fake", **self.options)

    def deaf(self) -> Guest:
        """One that never obeys."""
        image = self.use(GUESTS / "micro-deaf.img" if self.is_real else self.image_file)
        return self.running(replace(image, properties={"fake_shutdown_ignore": "1"}))

    def crash(self, guest: Guest) -> None:
        if self.host is None:
            self.driver.crash(guest.uuid)
            return
        pidfile = self.host.directory / "run/qemu" / f"{guest.name}.pid"
        os.kill(int(pidfile.read_text()), signal.SIGKILL)
        self.wait_event(guest.uuid, PowerState.CRASHED)


@dataclass
class Heard:
    """When a driver signalled, and when it pulled the plug."""

    signals: list[float] = field(default_factory=list)
    cuts: list[float] = field(default_factory=list)

    def listen(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        for verb, moments in (("signal_shutdown", self.signals), ("force_off", self.cuts)):
            monkeypatch.setattr(driver, verb, self._noting(getattr(driver, verb), moments))

    @staticmethod
    def _noting(verb: Callable, moments: list[float]) -> Callable:
        def noted(uuid: str):
            moments.append(time.time())
            return verb(uuid)

        return noted


@pytest.fixture(params=["fake", pytest.param("libvirt", marks=pytest.mark.live)])
def ward(request: pytest.FixtureRequest, tmp_path: Path, images: Path) -> Iterator[Ward]:
    host: LibvirtHost | None = None
    options: dict[str, str] = {"state": str(tmp_path / "fake.sqlite3")}
    if request.param == "libvirt":
        host = request.getfixturevalue("libvirt_host")
        options = {"uri": host.uri, "state_dir": str(tmp_path / "state"), "virt_type": "qemu"}
    driver = load(request.param, **options)
    found = Ward(driver, tmp_path, images / "micro.img", host, options=options)
    driver.watch(found.heard)
    yield found
    for made in found.made:
        driver.destroy(made)
    driver.close()


@pytest.fixture
def heard(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> Heard:
    moments = Heard()
    moments.listen(ward.driver, monkeypatch)
    return moments


def runs(ward: Ward, guest: Guest) -> ShutdownTimer:
    """Its clock, which has to be there, and to run."""
    timer = ward.driver.timer(guest.uuid)
    assert timer is not None
    assert timer.runs
    return timer


def one_each_interval(heard: Heard, timer: ShutdownTimer) -> None:
    """However late a signal was, the next one is at its own time."""
    intervals = [int((moment - timer.begun) / timer.interval) for moment in heard.signals]
    assert len(set(intervals)) == len(intervals), intervals


def test_a_guest_that_obeys_is_signalled_once_and_off_long_before_its_deadline(ward: Ward, heard: Heard):
    guest = ward.running()
    asked = time.time()
    timer = ward.driver.power_off(guest.uuid, LONG, 30)
    assert ward.power(guest) is PowerState.SHUTDOWN
    assert (timer.how, timer.signals, timer.by, timer.why) == ("guest", 1, "acpi", "")
    assert heard.signals[0] - asked < fair(LATE), "it is signalled at once"
    assert timer.ended - timer.begun < LONG / 2
    assert not heard.cuts
    assert ward.driver.timer(guest.uuid) == timer
    assert timer.words().startswith("guest shut down in ")
    assert ward.driver.power_off(guest.uuid, LONG) == timer, "asked again, it is off, and this is how that came"


def test_one_that_never_obeys_is_signalled_at_whole_intervals_and_forced_off_at_its_deadline(ward: Ward, heard: Heard):
    guest = ward.deaf()
    timer = ward.driver.power_off(guest.uuid, SHORT, EVERY)
    assert ward.power(guest) is PowerState.SHUTDOWN
    assert (timer.how, timer.why, timer.deadline - timer.begun) == ("forced", "", pytest.approx(SHORT))
    assert 2 <= timer.signals == len(heard.signals) <= 4
    one_each_interval(heard, timer)
    assert len(heard.cuts) == 1
    assert 0 <= heard.cuts[0] - timer.deadline < fair(LATE)


def test_no_time_is_no_signal(ward: Ward, heard: Heard):
    guest = ward.running()
    timer = ward.driver.power_off(guest.uuid, 0)
    assert ward.power(guest) is PowerState.SHUTDOWN
    assert (heard.signals, timer.signals, timer.how) == ([], 0, "forced")
    assert timer.words() == "forced off at once"


def test_who_comes_later_joins_the_clock_and_moves_nothing(ward: Ward):
    guest, driver = ward.deaf(), ward.driver
    first = driver.begin_shutdown(guest.uuid, SHORT, EVERY)
    for timeout, interval in ((LONG, 0.05), (0.1, 20)):
        joined = driver.begin_shutdown(guest.uuid, timeout, interval)
        assert (joined.begun, joined.deadline, joined.interval) == (first.begun, first.deadline, first.interval)
    assert driver.timers() == {guest.uuid: runs(ward, guest)}
    timer = driver.power_off(guest.uuid, LONG)
    assert (timer.deadline, timer.how, timer.why) == (first.deadline, "forced", "")
    assert driver.timers() == {}


def test_who_cannot_wait_ends_it_for_all(ward: Ward):
    guest, driver = ward.deaf(), ward.driver
    begun = driver.begin_shutdown(guest.uuid, LONG, 30)
    ends: list[ShutdownTimer] = []
    waits = threading.Thread(target=lambda: ends.append(driver.power_off(guest.uuid, LONG)))
    waits.start()
    ended = driver.power_off(guest.uuid, 0)
    waits.join(20)
    assert (ended.begun, ended.how, ended.why) == (begun.begun, "forced", CUT_SHORT)
    assert ends == [ended]
    assert ended.ended - begun.begun < 10


def _paused(ward: Ward, guest: Guest) -> None:
    ward.driver.pause(guest.uuid)


def _suspended(ward: Ward, guest: Guest) -> None:
    ward.driver.suspend(guest.uuid)


@pytest.mark.parametrize(("so", "when"), [(_paused, "meanwhile"), (_suspended, "before")])
def test_who_cannot_hear_is_not_waited_for(ward: Ward, heard: Heard, so: Callable, when: str):
    guest = ward.deaf()
    if when == "meanwhile":
        ward.driver.begin_shutdown(guest.uuid, LONG, 30)
    so(ward, guest)
    timer = ward.driver.power_off(guest.uuid, LONG, 30)
    assert ward.power(guest) is PowerState.SHUTDOWN
    assert (timer.how, timer.why) == ("forced", f"it was {so.__name__[1:]}")
    assert len(heard.signals) == timer.signals == (when == "meanwhile")


def test_a_guest_that_crashes_meanwhile_has_crashed(ward: Ward):
    guest = ward.deaf()
    ward.driver.begin_shutdown(guest.uuid, LONG, 30)
    ward.crash(guest)
    timer = ward.driver.power_off(guest.uuid, LONG)
    assert (timer.how, timer.signals) == ("crashed", 1)
    assert timer.words().startswith("guest crashed after ")


def test_who_is_off_or_was_never_on_is_off(ward: Ward, heard: Heard):
    driver, crashed, unborn = ward.driver, ward.running(), ward.guest()
    driver.spawn(unborn, ward.fetch, on=False)
    ward.crash(crashed)
    for uuid in (crashed.uuid, unborn.uuid, STRANGER):
        assert driver.power_off(uuid, LONG, 30) is None
        assert driver.turn(uuid) is None
        assert driver.timer(uuid) is None
    assert not heard.signals
    with pytest.raises(GuestNotFound):
        driver.save_timer(STRANGER, ShutdownTimer.start(time.time(), 1, 1))


@pytest.mark.parametrize("then", ["obeys", "is cut off"])
def test_whoever_turned_it_off_is_named(ward: Ward, then: str):
    guest, driver = ward.running() if then == "obeys" else ward.deaf(), ward.driver
    begun = driver.begin_shutdown(guest.uuid, LONG, 30)
    if then == "is cut off":  # as with virsh destroy
        driver.force_off(guest.uuid)
    assert driver.wait_until_off(guest.uuid, 20)
    timer = driver.begin_shutdown(guest.uuid, 0, 30)  # in a hurry, and too late
    wanted = ("guest", "") if then == "obeys" else ("forced", "its power was cut")
    assert (timer.begun, timer.how, timer.why) == (begun.begun, *wanted)


def test_a_clock_that_is_given_up_leaves_its_guest_on_and_the_next_one_is_new(ward: Ward, heard: Heard):
    guest, driver = ward.deaf(), ward.driver
    begun = driver.begin_shutdown(guest.uuid, SHORT, EVERY)
    driver.stop_timer(guest.uuid)
    given_up = driver.turn(guest.uuid)
    assert (given_up.begun, given_up.how, given_up.runs) == (begun.begun, "left", False)
    assert (driver.timers(), ward.power(guest), heard.cuts) == ({}, PowerState.RUNNING, [])
    timer = driver.begin_shutdown(guest.uuid, LONG, 30)
    assert timer.begun > begun.begun
    assert timer.signals == 1
    driver.stop_timer(STRANGER)


def test_a_boot_forgets_the_clock(ward: Ward):
    guest, driver = ward.running(), ward.driver
    for start in (driver.power_on, driver.reboot_hard):
        driver.power_off(guest.uuid, 0)
        assert driver.timer(guest.uuid)
        start(guest)
        assert driver.timer(guest.uuid) is None
    driver.begin_shutdown(guest.uuid, LONG, 30)
    driver.destroy(guest.uuid)
    assert (driver.turn(guest.uuid), driver.timers()) == (None, {})


PROGRAM = """
import json, sys, time
from compute.virt import load
kind, options, uuid = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
driver = load(kind, **options)
clock = driver.begin_shutdown(uuid, float(sys.argv[4]), 0.3)
print(clock.text, flush=True)
time.sleep(60)
"""


def begun_by_a_process_that_is_killed(ward: Ward, guest: Guest, seconds: float) -> ShutdownTimer:
    """The clock as that process had it."""
    kind = "libvirt" if ward.is_real else "fake"
    command = [sys.executable, "-c", PROGRAM, kind, json.dumps(ward.options), guest.uuid, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as worker:
        said = worker.stdout.readline()
        worker.send_signal(signal.SIGKILL)
    timer = ShutdownTimer.load(said)
    assert timer is not None
    return timer


def test_whoever_comes_after_a_killed_worker_gives_what_is_left_and_no_more(ward: Ward, heard: Heard):
    guest, driver = ward.deaf(), ward.driver
    begun = begun_by_a_process_that_is_killed(ward, guest, 1.5)
    assert driver.timers() == {guest.uuid: begun}
    timer = driver.power_off(guest.uuid, LONG, 30)
    assert (timer.begun, timer.deadline, timer.how, timer.why) == (begun.begun, begun.deadline, "forced", "")
    assert 0 <= heard.cuts[0] - begun.deadline < fair(LATE)
    assert timer.signals == begun.signals + len(heard.signals)


def test_two_processes_turn_it_at_once_and_no_signal_is_doubled_or_lost(
    ward: Ward, heard: Heard, monkeypatch: pytest.MonkeyPatch
):
    guest, other = ward.deaf(), ward.another_driver()
    heard.listen(other, monkeypatch)
    begun = ward.driver.begin_shutdown(guest.uuid, SHORT, EVERY)

    def turn(driver: Driver) -> None:
        while (timer := driver.turn(guest.uuid)) is not None and timer.runs:
            pass

    threads = [threading.Thread(target=turn, args=(driver,)) for driver in (ward.driver, other) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    timer = other.timer(guest.uuid)
    other.close()
    assert (timer.begun, timer.deadline, timer.how) == (begun.begun, begun.deadline, "forced")
    assert timer.signals == len(heard.signals)
    one_each_interval(heard, timer)
    assert len(heard.cuts) == 1
    assert not list(ward.folder.rglob(f"*locks/{guest.uuid}"))


class Killed(BaseException):
    """kill -9."""


PRIMITIVES = ("timer", "save_timer", "signal_shutdown", "force_off", "how_ended")


@pytest.mark.parametrize("side", ["before", "after", "away"])
def test_killed_before_and_after_everything_it_does_the_next_life_ends_it_at_the_same_deadline(
    ward: Ward, side: str, monkeypatch: pytest.MonkeyPatch
):
    """One guest, a life for each of its kill points; each life goes on where the one before it died.

    So does one that finds the hypervisor away at each call.
    """
    guest, driver, deaths = ward.deaf(), ward.driver, 0
    begun = driver.begin_shutdown(guest.uuid, SHORT, EVERY)
    done: set[tuple[str, int, str]] = set()

    def deadly(verb: str, real: Callable) -> Callable:
        def call(*args):
            kept = args[1] if verb == "save_timer" else None
            point = (verb, kept.signals if kept else 0, kept.how + str(kept.runs) if kept else "")
            first_time = point not in done
            done.add(point)
            if first_time and side != "after":
                raise Killed if side == "before" else HypervisorUnavailable("away")
            result = real(*args)
            if first_time:
                raise Killed
            return result

        return call

    for verb in PRIMITIVES:
        monkeypatch.setattr(driver, verb, deadly(verb, getattr(driver, verb)))
    timer: ShutdownTimer | None = begun
    while timer is not None and timer.runs:
        try:
            timer = driver.turn(guest.uuid)
        except (Killed, HypervisorUnavailable):
            deaths += 1
    assert timer is not None
    assert deaths >= 7, done
    assert (timer.begun, timer.deadline, timer.how) == (begun.begun, begun.deadline, "forced")
    assert 0 <= timer.ended - timer.deadline < fair(3 * LATE)
    assert ward.power(guest) is PowerState.SHUTDOWN
    wait_until(lambda: driver.timer(guest.uuid) == timer, "it is kept as it ended", 1)
