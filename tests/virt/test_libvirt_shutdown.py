"""Grace with real guests only: the agent, a QEMU that hangs, virsh behind our back, a libvirtd that dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from compute.virt.base import Guest, HypervisorUnavailable, PowerState
from deploy.guests.build import with_agent
from tests.machine import fair
from tests.virt.conftest import GUESTS, READY, Bench, wait_until
from tests.virt.test_libvirt_guests import virsh
from tests.virt.test_libvirt_reconnect import is_away, is_back, mortal, own_host

__all__ = ["mortal", "own_host"]  # fixtures
pytestmark = pytest.mark.live
DEAF = GUESTS / "micro-deaf.img"


def test_a_guest_that_virsh_starts_again_is_safe_from_its_old_clock(libvirt_bench: Bench):
    bench, driver = libvirt_bench, libvirt_bench.driver
    guest = bench.running(bench.use(DEAF))
    old = driver.begin_shutdown(guest.uuid, 1.0, 30)
    virsh(bench, "destroy", guest.uuid)  # nobody of ours sees it
    virsh(bench, "start", guest.uuid)
    assert (driver.timer(guest.uuid), driver.timers()) == (None, {})
    wait_until(lambda: time.time() > old.deadline + 0.5, "the old deadline is over")
    assert driver.turn(guest.uuid) is None
    assert bench.power(guest) is PowerState.RUNNING

    new = driver.begin_shutdown(guest.uuid, 60, 30)  # and it has a grace of its own
    assert new.begun > old.deadline
    assert (new.runs, new.signals, new.by) == (True, 1, "acpi")


def test_a_guest_that_is_frozen_and_restored_with_virsh_has_its_clock_still(libvirt_bench: Bench):
    bench, driver = libvirt_bench, libvirt_bench.driver
    guest = bench.running(bench.use(DEAF))
    begun = driver.begin_shutdown(guest.uuid, 60, 30)
    virsh(bench, "managedsave", guest.uuid)
    virsh(bench, "start", guest.uuid)
    assert driver.turn(guest.uuid) == begun, "it is the same boot of the guest"
    assert driver.power_off(guest.uuid, 0).how == "forced"


def test_a_qemu_that_hangs_is_off_soon_after_the_deadline_and_holds_up_no_other(
    libvirt_bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench, driver = libvirt_bench, libvirt_bench.driver
    other, stuck = bench.running(), bench.running(bench.use(DEAF))
    pid = int((bench.host.directory / "run/qemu" / f"{stuck.name}.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    ends, cuts, force_off = [], [], driver.force_off

    def cut(uuid: str) -> None:
        """It would take libvirt's SIGKILL ten seconds; all we want to see is when the plug is pulled."""
        cuts.append(time.time())
        os.kill(pid, signal.SIGCONT)
        force_off(uuid)

    monkeypatch.setattr(driver, "force_off", cut)
    waits = threading.Thread(target=lambda: ends.append(driver.power_off(stuck.uuid, 1.0, 0.5)))
    waits.start()
    assert driver.power_off(other.uuid, 60, 30).how == "guest"
    waits.join(30)
    assert bench.power(stuck) is PowerState.SHUTDOWN
    (timer,) = ends
    assert timer.how == "forced"
    # Calls are given up after two seconds each. Seen in CI: 20 s, when keepalives came every five seconds.
    assert 0 <= cuts[0] - timer.deadline < 15


def test_a_libvirtd_that_is_restarted_costs_its_guests_no_grace_and_gives_none(mortal: Bench):
    driver = mortal.driver
    guest = mortal.running(mortal.use(DEAF))
    begun = driver.begin_shutdown(guest.uuid, 4.0, 1.0)
    mortal.host.stop(signal.SIGKILL)
    wait_until(lambda: is_away(mortal), "the loss is noticed")
    with pytest.raises(HypervisorUnavailable):
        driver.turn(guest.uuid)
    mortal.host.start()
    wait_until(lambda: is_back(mortal), "connected again")
    timer = driver.power_off(guest.uuid, 60, 30)
    assert (timer.begun, timer.deadline, timer.interval) == (begun.begun, begun.deadline, begun.interval)
    assert (timer.how, timer.why) == ("forced", "")
    assert timer.ended - begun.deadline < 10


@contextmanager
def shell(bench: Bench, guest: Guest) -> Iterator[libvirt.virStream]:
    """The serial console of a tiny Linux."""
    domain = bench.driver._host.guest(guest.uuid).domain
    stream = domain.connect().newStream(0)
    domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_FORCE)
    yield stream
    stream.abort()


def test_the_agent_is_asked_if_it_answers_else_the_power_button_is_pressed(libvirt_bench: Bench):
    """This guest ignores its power button. While its agent hangs it does not obey at all."""
    bench, driver = libvirt_bench, libvirt_bench.driver
    image = replace(bench.use(with_agent(Path(GUESTS)), "qcow2"), properties={"hw_qemu_guest_agent": "yes"})
    guest = bench.guest(image, memory_mb=128)
    driver.spawn(guest, bench.fetch)
    assert driver.signal_shutdown(guest.uuid) == "acpi", "nobody listens yet"
    wait_until(lambda: READY in driver.console_output(guest.uuid), "Linux is ready", seconds=120)
    domain = driver._host.guest(guest.uuid)
    wait_until(domain.has_agent, "the agent listens")

    with shell(bench, guest) as typed:
        typed.send(b"\nkillall -STOP qemu-ga; echo STOP''PED\n")
        bench.wait_console(guest.uuid, "STOPPED")
        timer = driver.begin_shutdown(guest.uuid, 120, 3)
        assert (timer.by, timer.signals) == ("acpi", 1)
        assert timer.now() - timer.begun < fair(3), "an agent that hangs costs two seconds at most"
        bench.wait_console(guest.uuid, "STILLWATER POWERBTN")
        typed.send(b"\nkillall -CONT qemu-ga; echo CONTI''NUED\n")
        bench.wait_console(guest.uuid, "CONTINUED")

    timer = driver.power_off(guest.uuid, 120, 3)
    assert (timer.how, timer.by) == ("guest", "acpi, agent")
    assert "STILLWATER DOWN agent" in driver.console_output(guest.uuid)
