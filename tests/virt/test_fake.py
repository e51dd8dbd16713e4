"""The fake driver's own promises: orders, size, survival."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
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
from compute.virt.content import check, write_empty_qcow2
from compute.virt.fake import FakeDriver
from compute.virt.fake_orders import ALWAYS, Orders, parse_orders
from tests.virt.conftest import Bench, wait_until

ROOT = Path(__file__).parents[2]


def test_orders_are_read_from_a_setting():
    parsed = parse_orders(
        "spawn.delay=0.5, spawn.fail=2,spawn.error=InsufficientResources,"
        "shutdown.delay=3,shutdown.ignore=1,shutdown.skip=2,pause.fail=always"
    )
    spawn = parsed.verbs["spawn"]
    assert (spawn.delay, spawn.fail, spawn.error) == (0.5, 2, InsufficientResources)
    assert parsed.verbs["pause"].fail == ALWAYS
    assert (parsed.shutdown.delay, parsed.shutdown.ignore, parsed.shutdown.skip) == (3, True, 2)


@pytest.mark.parametrize(
    "text", ["spawn", "spawn.fail", "dance.fail=1", "spawn.colour=1", "spawn.error=Boom", "x=1"]
)
def test_nonsense_orders_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_orders(text)


def test_a_verb_fails_as_often_as_ordered(fake_bench: Bench):
    fake_bench.driver.orders.fail("spawn", times=2, error=InsufficientResources)
    guest = fake_bench.guest()
    for _ in range(2):
        with pytest.raises(InsufficientResources):
            fake_bench.driver.spawn(guest, fake_bench.fetch)
    fake_bench.driver.spawn(guest, fake_bench.fetch)
    assert fake_bench.driver.calls.count(("spawn", guest.uuid)) == 3


def test_a_verb_can_fail_for_one_guest_only(fake_bench: Bench):
    one, other = fake_bench.running(), fake_bench.running()
    fake_bench.driver.orders.fail("pause", ALWAYS, OperationTimedOut, uuid=one.uuid)
    for _ in range(3):
        with pytest.raises(OperationTimedOut):
            fake_bench.driver.pause(one.uuid)
    fake_bench.driver.pause(other.uuid)
    fake_bench.driver.orders.clear()
    fake_bench.driver.pause(one.uuid)


def test_a_verb_takes_as_long_as_ordered(fake_bench: Bench):
    guest = fake_bench.running()
    fake_bench.driver.orders.delay("pause", 0.2)
    start = time.monotonic()
    fake_bench.driver.pause(guest.uuid)
    assert time.monotonic() - start >= 0.2


def test_image_properties_order_too(fake_bench: Bench):
    orders = {
        "fake_spawn_fail": "1",
        "fake_spawn_error": "InsufficientResources",
        "fake_shutdown_delay": "0.2",
        "fake_shutdown_skip": "1",
        "fake_pause_fail": "always",
        "fake_nonsense_fail": "1",
        "os_type": "linux",
    }
    image = replace(fake_bench.use(fake_bench.image_file), properties=orders)
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
    assert 0.1 <= time.monotonic() - start < 5


def test_a_guest_may_ignore_its_power_button():
    driver = FakeDriver(orders="shutdown.ignore=1")
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
    assert time.monotonic() - start < 30
    start = time.monotonic()
    assert len(driver.guests()) == 10_000
    assert time.monotonic() - start < 1
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
        driver = load("fake", state=sys.argv[1], orders="shutdown.delay=0.3")
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
    """As two lanes of one host do; here two drivers on one file."""
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
    orders = Orders("spawn.fail=1")
    drivers = [FakeDriver("one", orders=orders), FakeDriver("two", orders=orders)]
    assert drivers[0].orders is drivers[1].orders
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
