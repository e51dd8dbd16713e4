"""The libvirt daemon dies and comes back; the driver finds it again by itself."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compute.virt import load
from compute.virt.base import HypervisorUnavailable, PowerState
from deploy.local.libvirtd import LibvirtHost
from tests.machine import fair
from tests.virt.conftest import Bench, wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def own_host() -> Iterator[LibvirtHost]:
    """A daemon of the test's own, since it is going to be killed."""
    with tempfile.TemporaryDirectory(prefix="sw-") as root:
        host = LibvirtHost("mortal", root, index=61 + os.getpid() % 20)
        try:
            yield host.start()
        finally:
            host.destroy_all()
            host.stop()


@pytest.fixture
def mortal(tmp_path: Path, images: Path, own_host: LibvirtHost) -> Iterator[Bench]:
    driver = load("libvirt", uri=own_host.uri, state_dir=tmp_path / "state", virt_type="qemu")
    bench = Bench(driver, tmp_path, images / "micro.img", own_host)
    driver.watch(bench.heard)
    yield bench
    driver.close()


def is_back(bench: Bench) -> bool:
    try:
        return bool(bench.driver.guests())
    except HypervisorUnavailable:
        return False


def is_away(bench: Bench) -> bool:
    try:
        bench.driver.guests()
    except HypervisorUnavailable:
        return True
    return False


def test_a_killed_daemon_is_found_again_and_every_guest_reported(mortal: Bench):
    survivor, victim = mortal.running(), mortal.running()
    pids = {
        guest.uuid: int((mortal.host.directory / f"run/qemu/{guest.name}.pid").read_text())
        for guest in (survivor, victim)
    }
    mortal.host.stop(signal.SIGKILL)
    wait_until(lambda: is_away(mortal), "the loss is noticed")
    start = time.monotonic()
    for call in (mortal.driver.facts, lambda: mortal.driver.pause(survivor.uuid)):
        with pytest.raises(HypervisorUnavailable):
            call()
    assert time.monotonic() - start < fair(1)  # at once, not after a time-out
    os.kill(pids[victim.uuid], signal.SIGKILL)  # nobody sees this happen
    mortal.events.clear()

    mortal.host.start()
    wait_until(lambda: is_back(mortal), "connected again")

    assert mortal.wait_event(victim.uuid, PowerState.CRASHED).detail == "reconnected"
    assert mortal.wait_event(survivor.uuid, PowerState.RUNNING).detail == "reconnected"
    assert pids[survivor.uuid] in mortal.host.qemu_pids()
    mortal.driver.signal_shutdown(survivor.uuid)
    assert mortal.driver.wait_until_off(survivor.uuid, 20)
    mortal.wait_event(survivor.uuid, PowerState.SHUTDOWN)


def test_waiting_for_a_shutdown_outlasts_the_daemon(mortal: Bench):
    guest = mortal.running()
    ended: list[bool] = []
    waiting = threading.Thread(
        target=lambda: ended.append(mortal.driver.wait_until_off(guest.uuid, 60))
    )
    waiting.start()
    wait_until(lambda: mortal.driver._notifier._waiting, "somebody waits")
    mortal.host.stop(signal.SIGKILL)
    wait_until(lambda: is_away(mortal), "the loss is noticed")
    mortal.host.start()
    wait_until(lambda: is_back(mortal), "connected again")
    assert not ended
    mortal.driver.signal_shutdown(guest.uuid)
    waiting.join(30)
    assert ended == [True]


def test_a_driver_may_be_built_before_its_daemon_is_there(tmp_path: Path, images: Path):
    with tempfile.TemporaryDirectory(prefix="sw-") as root:
        host = LibvirtHost("late", root, index=90)
        driver = load("libvirt", uri=host.uri, state_dir=tmp_path / "state")
        bench = Bench(driver, tmp_path, images / "micro.img", host)
        driver.watch(bench.heard)
        with pytest.raises(HypervisorUnavailable):
            driver.guests()
        try:
            host.start()
            wait_until(lambda: not is_away(bench), "connected")
            assert driver.guests() == {}
            assert driver.facts().hypervisor_hostname == "late"
        finally:
            driver.close()
            host.destroy_all()
            host.stop()


def test_starting_a_host_that_runs_changes_nothing(own_host: LibvirtHost):
    pid = own_host.pid()
    assert own_host.start().pid() == pid
    again = LibvirtHost(own_host.name, own_host.directory.parent, own_host.index)
    assert again.start().pid() == pid
    own_host.stop()
    assert not own_host.is_running()
    own_host.stop()
