"""The fake driver's own promises: orders, size, survival."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from compute.virt import load
from compute.virt.base import (
    HypervisorUnavailable,
    Image,
    InsufficientResources,
    OperationTimedOut,
    PowerState,
    VirtError,
)
from compute.virt.fake.driver import FakeDriver
from compute.virt.fake.effects import Effect
from compute.virt.fake.faults import ALWAYS, Faults, parse_faults
from compute.virt.image_check import check, write_empty_qcow2
from tests.machine import fair
from tests.virt.conftest import Bench, wait_until

ROOT = Path(__file__).parents[2]


def test_orders_are_read_from_a_setting():
    parsed = parse_faults(
        "spawn.delay=0.5, spawn.fail=2,spawn.error=InsufficientResources,"
        "shutdown.delay=3,shutdown.ignore=1,shutdown.skip=2,pause.fail=always,reboot_hard.die=2"
    )
    spawn = parsed.verbs["spawn"]
    assert (spawn.delay, spawn.fail, spawn.error) == (0.5, 2, InsufficientResources)
    assert parsed.verbs["pause"].fail == ALWAYS
    assert parsed.verbs["reboot_hard"].die == 2
    assert (parsed.shutdown.delay, parsed.shutdown.ignore, parsed.shutdown.skip) == (3, True, 2)


@pytest.mark.parametrize(
    "text", ["spawn", "spawn.fail", "dance.fail=1", "spawn.colour=1", "spawn.error=Boom", "x=1"]
)
def test_nonsense_orders_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_faults(text)


def test_a_verb_fails_as_often_as_ordered(fake_bench: Bench):
    fake_bench.driver.faults.fail("spawn", times=2, error=InsufficientResources)
    guest = fake_bench.guest()
    for _ in range(2):
        with pytest.raises(InsufficientResources):
            fake_bench.driver.spawn(guest, fake_bench.fetch)
    fake_bench.driver.spawn(guest, fake_bench.fetch)
    assert fake_bench.driver.calls.count(("spawn", guest.uuid)) == 3


def test_a_verb_can_fail_for_one_guest_only(fake_bench: Bench):
    one, other = fake_bench.running(), fake_bench.running()
    fake_bench.driver.faults.fail("pause", ALWAYS, OperationTimedOut, uuid=one.uuid)
    for _ in range(3):
        with pytest.raises(OperationTimedOut):
            fake_bench.driver.pause(one.uuid)
    fake_bench.driver.pause(other.uuid)
    fake_bench.driver.faults.clear()
    fake_bench.driver.pause(one.uuid)


def test_a_verb_takes_as_long_as_ordered(fake_bench: Bench):
    guest = fake_bench.running()
    fake_bench.driver.faults.delay("pause", 0.2)
    start = time.monotonic()
    fake_bench.driver.pause(guest.uuid)
    assert time.monotonic() - start >= 0.2


def test_image_properties_order_too(fake_bench: Bench):
    faults = {
        "fake_spawn_fail": "1",
        "fake_spawn_error": "InsufficientResources",
        "fake_shutdown_delay": "0.2",
        "fake_shutdown_skip": "1",
        "fake_pause_fail": "always",
        "fake_nonsense_fail": "1",
        "os_type": "linux",
    }
    image = replace(fake_bench.use(fake_bench.image_file), properties=faults)
    guest, driver = fake_bench.guest(image), fake_bench.driver
    with pytest.raises(InsufficientResources):
        driver.spawn(guest, fake_bench.fetch)
    driver.spawn(guest, fake_bench.fetch)
    with pytest.raises(VirtError):
        driver.pause(guest.uuid)
    driver.signal_shutdown(guest.uuid)  # lost
    assert driver.wait_until_off(guest.uuid, 0.3) is False
    driver.signal_shutdown(guest.uuid)
    start = time.monotonic()
    assert driver.wait_until_off(guest.uuid, 10) is True
    assert 0.1 <= time.monotonic() - start < fair(5)


def test_a_guest_may_ignore_its_power_button():
    driver = FakeDriver(faults="shutdown.ignore=1")
    bench = Bench(driver, Path(), Path())
    guest = bench.guest(_raw_image())
    driver.spawn(guest, _write_raw)
    for _ in range(3):
        assert driver.signal_shutdown(guest.uuid) == "acpi"
    assert driver.wait_until_off(guest.uuid, 0.1) is False
    driver.power_off(guest.uuid)
    assert driver.wait_until_off(guest.uuid, 0) is True
    driver.close()


def test_a_host_that_is_away_comes_back_and_reports(fake_bench: Bench):
    guest = fake_bench.running()
    fake_bench.wait_event(guest.uuid, PowerState.RUNNING)
    fake_bench.driver.go_away()
    with pytest.raises(HypervisorUnavailable):
        fake_bench.driver.power_state(guest.uuid)
    fake_bench.events.clear()
    fake_bench.driver.come_back()
    assert fake_bench.wait_event(guest.uuid, PowerState.RUNNING).detail == "reconnected"


def test_ten_thousand_guests_are_cheap(tmp_path: Path):
    driver, image = FakeDriver(state=tmp_path / "fake.db"), _raw_image()
    bench = Bench(driver, tmp_path, tmp_path)
    guests = [bench.guest(image) for _ in range(10_000)]
    start = time.monotonic()
    for guest in guests:
        driver.spawn(guest, _write_raw)
    assert time.monotonic() - start < fair(30)
    start = time.monotonic()
    assert len(driver.guests()) == 10_000
    assert time.monotonic() - start < fair(1)
    for guest in guests[:1000]:
        driver.signal_shutdown(guest.uuid)
    wait_until(
        lambda: list(driver.guests().values()).count(PowerState.SHUTDOWN) == 1000, "1000 are off"
    )
    driver.close()


def test_guests_outlive_a_killed_worker(tmp_path: Path):
    program = """
        import pathlib, sys, uuid
        from compute.virt import load
        from compute.virt.base import Guest, Image
        driver = load("fake", state=sys.argv[1], faults="shutdown.delay=0.3")
        for number in range(3):
            name = f"00000000-0000-4000-8000-00000000000{number}"
            guest = Guest(name, "n", "d", 1, 64, 0, Image("i", "raw"))
            driver.spawn(guest, lambda path: path.write_bytes(bytes(1024)))
        driver.pause("00000000-0000-4000-8000-000000000001")
        driver.signal_shutdown("00000000-0000-4000-8000-000000000002")
        print("ready", flush=True)
        sys.stdin.read()
    """
    file = tmp_path / "fake.db"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(file)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout.readline() == b"ready\n"
        os.kill(worker.pid, signal.SIGKILL)
    driver = load("fake", state=file)
    states = [driver.power_state(f"00000000-0000-4000-8000-00000000000{n}") for n in (0, 1)]
    assert states == [PowerState.RUNNING, PowerState.PAUSED]
    assert driver.wait_until_off("00000000-0000-4000-8000-000000000002", 10)
    assert "boots=1" in driver.console_output("00000000-0000-4000-8000-000000000000")
    driver.close()


def test_two_processes_of_one_host_see_the_same_guests(tmp_path: Path):
    """as two queues of one host do; here two drivers on one file."""
    one, other = (FakeDriver(state=tmp_path / "fake.db") for _ in range(2))
    bench = Bench(one, tmp_path, tmp_path)
    guest = bench.guest(_raw_image())
    one.spawn(guest, _write_raw)
    assert other.guests() == {guest.uuid: PowerState.RUNNING}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.wait_until_off, guest.uuid, 20)
        other.signal_shutdown(guest.uuid)
        assert waiting.result() is True
    one.close()
    other.close()


def test_every_change_is_on_record_once_and_asking_again_is_none(fake_bench: Bench):
    guest, driver = fake_bench.guest(), fake_bench.driver
    verbs = (
        lambda: driver.spawn(guest, fake_bench.fetch),
        lambda: driver.pause(guest.uuid),
        lambda: driver.unpause(guest.uuid),
        lambda: driver.suspend(guest.uuid),
        lambda: driver.resume(guest),
        lambda: driver.reboot_hard(guest, "7"),
        lambda: driver.power_off(guest.uuid),
        lambda: driver.power_on(guest),
        lambda: driver.destroy(guest.uuid),
    )
    for verb in verbs:
        verb()
        verb()
    happened = [(one.effect.value, one.mark) for one in driver.effects(guest.uuid)]
    done = ["spawned", "paused", "unpaused", "suspended", "resumed"]
    later = ["powered off by force", "powered on", "destroyed"]
    assert happened == [*((verb, "") for verb in done), ("rebooted", "7"), *((verb, "") for verb in later)]


def test_who_switched_a_guest_off_is_on_record(fake_bench: Bench):
    guest, driver = fake_bench.running(), fake_bench.driver
    driver.signal_shutdown(guest.uuid)
    assert driver.wait_until_off(guest.uuid, 10)
    driver.power_on(guest)
    driver.pause(guest.uuid)
    driver.power_on(guest)
    driver.suspend(guest.uuid)
    driver.power_on(guest)
    driver.crash(guest.uuid)
    driver.snapshot(guest.uuid, fake_bench.folder / "copy.qcow2")
    happened = [one.effect for one in driver.effects(guest.uuid)]
    assert happened == [
        Effect.SPAWNED, Effect.OFF_BY_GUEST, Effect.POWERED_ON, Effect.PAUSED, Effect.UNPAUSED,
        Effect.SUSPENDED, Effect.RESUMED, Effect.CRASHED, Effect.SNAPSHOT,
    ]  # fmt: skip
    assert driver.effects(guest.uuid)[-1].mark == "copy"


@pytest.mark.parametrize("by", ["faults", "image"])
def test_a_worker_killed_in_the_middle_of_a_verb_goes_on_in_its_next_life(tmp_path: Path, by: str):
    program = """
        import pathlib, sys
        from compute.virt import load
        from compute.virt.base import Guest, Image
        faults = {"fake_reboot_hard_die": "2"} if sys.argv[2] == "image" else {}
        text = "reboot_hard.die=2" if sys.argv[2] == "faults" else ""
        driver = load("fake", state=sys.argv[1], faults=text)
        image = Image("i", "raw", properties=faults)
        guest = Guest("00000000-0000-4000-8000-000000000001", "n", "d", 1, 64, 0, image)
        if not driver.guests():
            driver.spawn(guest, lambda path: path.write_bytes(bytes(1024)))
        driver.reboot_hard(guest, "7")
        driver.reboot_hard(guest, "7")
    """
    file = tmp_path / "fake.db"
    command = [sys.executable, "-c", textwrap.dedent(program), str(file), by]
    lives = [subprocess.run(command, cwd=ROOT, timeout=60).returncode for _ in range(3)]
    assert lives == [-signal.SIGKILL, -signal.SIGKILL, 0]
    driver = load("fake", state=file)
    happened = [(one.effect.value, one.mark) for one in driver.effects()]
    assert happened == [("spawned", ""), ("rebooted", "7")]
    assert "boots=2" in driver.console_output("00000000-0000-4000-8000-000000000001")
    driver.close()


def test_a_state_file_of_an_older_version_is_taken_over(tmp_path: Path):
    file = tmp_path / "fake.db"
    with sqlite3.connect(file) as old:
        old.executescript(
            "CREATE TABLE guests (uuid TEXT PRIMARY KEY, name TEXT NOT NULL, power INTEGER NOT NULL,"
            " virtual_size INTEGER NOT NULL, off_at REAL, presses INTEGER NOT NULL DEFAULT 0,"
            " boots INTEGER NOT NULL DEFAULT 0, properties TEXT NOT NULL DEFAULT '{}',"
            " console TEXT NOT NULL DEFAULT '');"
            "INSERT INTO guests (uuid, name, power, virtual_size) VALUES ('a', 'n', 1, 1024)"
        )
    old.close()
    driver = FakeDriver(state=file)
    assert driver.guests() == {"a": PowerState.RUNNING}
    assert not driver.rebooted("a", "7")
    driver.close()


@pytest.mark.parametrize("size", [512, 1 << 20, 20 << 30, 1 << 40])
def test_a_snapshot_is_a_real_qcow2(tmp_path: Path, size: int):
    file = tmp_path / "empty.qcow2"
    write_empty_qcow2(file, size)
    assert check(file, _image("qcow2")) == size
    if shutil.which("qemu-img"):
        command = ["qemu-img", "check", "-f", "qcow2", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert "No errors" in done.stdout


def test_orders_may_be_shared_by_hosts():
    faults = Faults("spawn.fail=1")
    drivers = [FakeDriver("one", faults=faults), FakeDriver("two", faults=faults)]
    assert drivers[0].faults is drivers[1].faults
    for driver in drivers:
        driver.close()


def test_an_unknown_driver_is_named():
    with pytest.raises(ValueError, match="vmware"):
        load("vmware")


def _image(disk_format: str) -> Image:
    return Image("an-image", disk_format)


def _raw_image() -> Image:
    return _image("raw")


def _write_raw(target: Path) -> None:
    target.write_bytes(bytes(4096))


def behaving(**faults: str) -> Image:
    """Of guests that take their shutdown so."""
    return replace(_raw_image(), properties={f"fake_{name}": value for name, value in faults.items()})


def fake_guest(driver: FakeDriver, **faults: str) -> str:
    guest = Bench(driver, Path(), Path()).guest(behaving(**faults))
    driver.spawn(guest, _write_raw)
    return guest.uuid


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    made = FakeDriver()
    yield made
    made.close()


def test_a_guest_that_boots_hears_nothing_for_a_while(driver: FakeDriver):
    uuid = fake_guest(driver, shutdown_deaf="0.8")
    timer = driver.power_off(uuid, 30, 0.3)
    assert timer.how == "guest"
    assert 0.8 <= timer.ended - timer.begun < 10
    assert timer.signals >= 2


@pytest.mark.parametrize(("agent", "by"), [("yes", "agent"), ("hangs", "acpi"), ("no", "acpi")])
def test_a_fake_guest_may_have_an_agent(driver: FakeDriver, agent: str, by: str):
    timer = driver.power_off(fake_guest(driver, agent=agent), 30, 10)
    assert (timer.how, timer.by) == ("guest", by)
    assert (timer.ended - timer.begun >= 1.0) == (agent == "hangs")


def test_an_agent_listens_when_its_guest_has_booted(driver: FakeDriver):
    uuid = fake_guest(driver, agent="yes", shutdown_deaf="0.5", shutdown_delay="0.2")
    timer = driver.power_off(uuid, 30, 0.6)
    assert (timer.how, timer.by, timer.signals) == ("guest", "acpi, agent", 2)


def test_a_guest_may_crash_when_it_is_to_shut_down(driver: FakeDriver):
    uuid = fake_guest(driver, shutdown_ends="crash")
    timer = driver.power_off(uuid, 30, 10)
    assert timer.how == "crashed"
    assert driver.power_state(uuid) is PowerState.CRASHED
    assert driver.effects(uuid)[-1].effect is Effect.CRASHED


def test_a_guest_may_boot_again_instead_of_going_off(driver: FakeDriver):
    uuid = fake_guest(driver, shutdown_ends="reboot")
    timer = driver.power_off(uuid, 0.7, 0.3)
    assert (timer.how, timer.why) == ("forced", "")
    assert timer.signals >= 2
    happened = [one.effect for one in driver.effects(uuid)]
    assert happened.count(Effect.REBOOTED_BY_GUEST) >= 2
    assert happened[-1] is Effect.OFF_BY_FORCE


def test_how_guests_shut_down_is_read_from_a_setting():
    fault = parse_faults("shutdown.deaf=15,shutdown.agent=hangs,shutdown.ends=reboot").shutdown
    assert (fault.deaf, fault.agent, fault.ends) == (15, "hangs", "reboot")
    with pytest.raises(ValueError, match="ends in no 'fire'"):
        parse_faults("shutdown.ends=fire")


def test_a_watcher_hears_at_once_what_another_process_did(tmp_path: Path):
    """As the worker of a host and a command of its operator do; here two drivers on one file."""
    one, other = (FakeDriver(state=tmp_path / "fake.db") for _ in range(2))
    heard: list[str] = []
    mine, theirs = (fake_guest(one, shutdown_ignore="1") for _ in range(2))
    one.on_change(heard.append)
    begun = time.monotonic()
    other.power_off(theirs, 0)
    wait_until(lambda: theirs in heard, "it is heard of")
    assert time.monotonic() - begun < fair(5)
    assert mine not in heard
    one.close()
    other.close()
