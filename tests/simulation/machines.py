"""Hypervisors: the fake driver, whose guests belong to the machine and not to the process that opened the driver."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from compute.virt.base import HypervisorUnavailable, PowerState, VirtError
from compute.virt.fake import driver as fake_driver
from compute.virt.fake import state
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.driver import FakeDriver
from compute.virt.fake.faults import KINDS, Faults, ShutdownBehaviour
from tests.simulation import primitives
from tests.simulation.kernel import Simulation

READS = frozenset({
    "facts", "guests", "power_state", "timer", "timers", "shutdown_preferences", "how_ended", "rebooted",
})  # fmt: skip


class Machine:
    """One host's hypervisor, which survives the end of processes."""

    def __init__(self, sim: Simulation, name: str, dice: Random, folder: Path) -> None:
        self.sim, self.name, self.dice = sim, name, dice
        self.state = state.StateFile(None)
        self.inbox = folder / name
        self.inbox.mkdir()
        self.away_until = 0.0
        self.failures: list[tuple[str, str, bool]] = []  # verb ("": any write), error, after the effect
        self.faults = Faults()
        self.locks: dict[str, primitives.Lock] = defaultdict(primitives.Lock)
        self.slow = 0.0
        self.power_losses = 0  # a guest that went off after its reboot is rightly started by the step's next try
        self.before: Callable[[str], None] = lambda verb: None  # called for each verb that is no read

    def driver(self) -> FakeDriver:
        """Return a new driver, as a process opens it."""
        made = _Driver(self.name, faults=self.faults, vcpus=64, memory_mb=65536, disk_gb=1024)
        made.inbox = self.inbox
        return made

    def shutdown_preferences(self) -> None:
        """Draw how guests of this machine react to a shutdown signal."""
        delay = self.dice.choice((0.0, 0.5, 3.0, 8.0))
        ignore = self.dice.random() < 0.15
        self.faults._shutdown = {"": ShutdownBehaviour(delay=delay, ignore=ignore)}

    def powers(self) -> dict[str, PowerState]:
        """Return the power state of every guest."""
        return self.state.powers()

    def kept(self) -> set[str]:
        """Return the guests that left, and that the machine could have back."""
        return {uuid for (uuid,) in self.state.run("SELECT uuid FROM departed")}


class _Calls(CallLog):
    """The call log of a driver: every verb is a yield point, and a place at which it may fail."""

    machine: Machine

    @contextmanager
    def __call__(self, verb: str, uuid: str, guest: Any = None) -> Iterator[Callable[[], None]]:
        machine, sim = self.machine, self.machine.sim
        self.made.append((verb, uuid))
        if verb not in READS:
            machine.before(verb)
        sim.point("verb", f"{machine.name} {verb} {uuid[:8]}")
        if machine.away_until > sim.now:
            raise HypervisorUnavailable(f"{machine.name} is away")
        lost = self._failure(verb)
        if machine.slow and verb not in READS:
            sim.sleep(machine.dice.random() * machine.slow)
        yield lambda: self._half(sim)
        if verb not in READS:
            sim.point("did", f"{machine.name} {verb} {uuid[:8]}")
        if lost is not None:
            raise lost

    def seconds(self, verb: str, uuid: str, guest: Any) -> float:
        return self.machine.slow * self.machine.dice.random() * 2

    def pause(self, seconds: float) -> None:
        self.machine.sim.sleep(seconds)

    def _half(self, sim: Simulation) -> None:
        """Yield inside the fake hypervisor's transaction: a process that is killed here has changed nothing."""
        me = sim.actor
        if me is not None:
            me.atomic += 1
            try:
                sim.point("half", "")
            finally:
                me.atomic -= 1

    def _failure(self, verb: str) -> VirtError | None:
        """Return the error to raise after the effect; an error before the effect is raised here."""
        for number, (wanted, kind, after) in enumerate(self.machine.failures):
            if wanted == verb or (not wanted and verb not in READS):
                del self.machine.failures[number]
                error = HypervisorUnavailable("its answer was lost") if after else KINDS[kind]("it failed as injected")
                self.machine.sim.say(f"{verb} is to fail: {error!r}")
                if not after:
                    raise error
                return error
        return None


class _Locks:
    """One lock per guest for all processes of a host, as the lock files of real processes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @contextmanager
    def alone(self, uuid: str, patience: float = 10.0) -> Iterator[None]:
        lock = self.machine.locks[uuid]
        held = lock.acquire(timeout=patience)
        try:
            yield
        finally:
            if held:
                lock.release()


class _Driver(FakeDriver):
    """The real fake driver with the machine's state."""

    inbox: Path

    @property
    def _inbox(self) -> Path:  # type: ignore[override]
        return self.inbox

    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        end = self._call.machine.sim.now + seconds  # type: ignore[attr-defined]
        while self.power_state(uuid) in fake_driver.ALIVE:
            left = end - self._call.machine.sim.now  # type: ignore[attr-defined]
            if left <= 0:
                return False
            self._call.machine.sim.sleep(min(1.0, left))  # type: ignore[attr-defined]
        return True

    def close(self) -> None:
        self._timer.close()
        self._event_thread.close()


def open_driver(machine: Machine) -> FakeDriver:
    """Return a driver of the machine's hypervisor for the process that opens it."""

    class Bound(_Calls):
        """The call log of this machine."""

    Bound.machine = machine
    kept = fake_driver.StateFile, fake_driver.CallLog
    fake_driver.StateFile, fake_driver.CallLog = (lambda file: machine.state), Bound  # type: ignore[assignment,misc]
    try:
        made = machine.driver()
    finally:
        fake_driver.StateFile, fake_driver.CallLog = kept  # type: ignore[misc]
    made._locks = _Locks(machine)  # type: ignore[assignment]
    return made


@contextmanager
def folder() -> Iterator[Path]:
    """Create a temporary folder for data that moves between machines."""
    base = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="stillwater-sim-", dir=base if base.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
