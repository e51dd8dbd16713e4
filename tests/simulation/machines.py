"""Hypervisors: the fake driver, whose guests belong to the machine and not to the process that asks for them."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from compute.virt import fake, fake_state
from compute.virt.base import HypervisorUnavailable, PowerState, VirtError
from compute.virt.fake import FakeDriver
from compute.virt.fake_calls import Calls
from compute.virt.fake_orders import KINDS, Orders, Shutdown
from tests.simulation import primitives
from tests.simulation.kernel import Simulation

READS = frozenset({"facts", "guests", "power_state", "clock", "clocks", "farewells", "how_ended", "rebooted"})


class Machine:
    """One host's hypervisor, which lives on when processes die."""

    def __init__(self, sim: Simulation, name: str, dice: Random, folder: Path) -> None:
        self.sim, self.name, self.dice = sim, name, dice
        self.state = fake_state.State(None)
        self.inbox = folder / name
        self.inbox.mkdir()
        self.away_until = 0.0
        self.failures: list[tuple[str, str, bool]] = []  # verb ("" any that writes), kind, after the effect
        self.orders = Orders()
        self.locks: dict[str, primitives.Lock] = defaultdict(primitives.Lock)
        self.slow = 0.0
        self.power_losses = 0  # a guest that went off after its reboot is rightly started by the step's next try
        self.before: Callable[[str], None] = lambda verb: None  # each verb that is no read

    def driver(self) -> FakeDriver:
        """As a process opens it."""
        made = _Driver(self.name, orders=self.orders, vcpus=64, memory_mb=65536, disk_gb=1024)
        made.inbox = self.inbox
        return made

    def farewells(self) -> None:
        """How guests of this machine take it that they are to shut down."""
        delay = self.dice.choice((0.0, 0.5, 3.0, 8.0))
        ignore = self.dice.random() < 0.15
        self.orders._shutdown = {"": Shutdown(delay=delay, ignore=ignore)}

    def powers(self) -> dict[str, PowerState]:
        """Every guest's."""
        return self.state.powers()

    def kept(self) -> set[str]:
        """Guests that left, and that it could have back."""
        return {uuid for (uuid,) in self.state.run("SELECT uuid FROM departed")}


class _Calls(Calls):
    """Every verb is a moment at which others may come first, and at which it may fail."""

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
        """In a transaction of the fake hypervisor's: who dies here has done nothing."""
        me = sim.actor
        if me is not None:
            me.atomic += 1
            try:
                sim.point("half", "")
            finally:
                me.atomic -= 1

    def _failure(self, verb: str) -> VirtError | None:
        """What is raised when it is done; or it is raised now."""
        for number, (wanted, kind, after) in enumerate(self.machine.failures):
            if wanted == verb or (not wanted and verb not in READS):
                del self.machine.failures[number]
                error = HypervisorUnavailable("its answer was lost") if after else KINDS[kind]("it failed to order")
                self.machine.sim.say(f"{verb} is to fail: {error!r}")
                if not after:
                    raise error
                return error
        return None


class _Locks:
    """One file a guest, as real processes of one host have them."""

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
    """The real fake driver with its state elsewhere."""

    inbox: Path

    @property
    def _inbox(self) -> Path:  # type: ignore[override]
        return self.inbox

    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        end = self._call.machine.sim.now + seconds  # type: ignore[attr-defined]
        while self.power_state(uuid) in fake.ALIVE:
            left = end - self._call.machine.sim.now  # type: ignore[attr-defined]
            if left <= 0:
                return False
            self._call.machine.sim.sleep(min(1.0, left))  # type: ignore[attr-defined]
        return True

    def close(self) -> None:
        self._clock.close()
        self._announcer.close()


def open_driver(machine: Machine) -> FakeDriver:
    """A driver of the machine's hypervisor, for the process that asks."""

    class Bound(_Calls):
        """Calls to this machine."""

    Bound.machine = machine
    kept = fake.State, fake.Calls
    fake.State, fake.Calls = (lambda file: machine.state), Bound  # type: ignore[assignment,misc]
    try:
        made = machine.driver()
    finally:
        fake.State, fake.Calls = kept  # type: ignore[misc]
    made._locks = _Locks(machine)  # type: ignore[assignment]
    return made


@contextmanager
def folder() -> Iterator[Path]:
    """For what is on its way between machines."""
    base = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="stillwater-sim-", dir=base if base.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
