"""The shutdown of fake guests: their timers, and how they react to a signal."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable

from compute.virt.base import PowerState, ShutdownPreference
from compute.virt.events import GuestNotifier, wait_for
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.effects import Effect
from compute.virt.fake.faults import Faults, from_properties
from compute.virt.fake.faults import ShutdownBehaviour as ShutdownOrder
from compute.virt.fake.state import GuestRecord, StateFile
from compute.virt.fake.timer import GuestTimers as FakeClock
from compute.virt.fake.timer import StateFilePoller
from compute.virt.shutdown import ShutdownDriver
from compute.virt.shutdown_timer import ShutdownTimer

AGENT_SECONDS = 1.0  # wait for a guest agent that hangs
ALIVE = frozenset({PowerState.RUNNING, PowerState.PAUSED})


class FakeShutdown(ShutdownDriver):
    """The shutdown verbs."""

    faults: Faults
    _state: StateFile
    _call: CallLog
    _notifier: GuestNotifier
    _timer: FakeClock
    _poller: StateFilePoller

    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        with self._call("shutdown_preferences", ""):
            powers = self._state.powers()
            known = self._state.shutdown_preferences()
            return {uuid: preference for uuid, preference in known.items() if powers.get(uuid) in ALIVE}

    def force_off(self, uuid: str) -> None:
        with self._call("power_off", uuid):
            if self._power(uuid) in ALIVE | {PowerState.SUSPENDED}:
                self._change(uuid, PowerState.SHUTDOWN, "destroyed", Effect.OFF_BY_FORCE)

    def timer(self, uuid: str) -> ShutdownTimer | None:
        with self._call("timer", uuid):
            return self._state.timer(uuid)

    def save_timer(self, uuid: str, timer: ShutdownTimer) -> None:
        with self._call("save_timer", uuid), self._state.alone():
            self._state.get(uuid)
            self._state.save_timer(uuid, timer)

    def timers(self) -> dict[str, ShutdownTimer]:
        with self._call("timers", ""):
            return {uuid: timer for uuid, timer in self._state.timers().items() if timer.runs}

    def how_ended(self, uuid: str) -> str:
        with self._call("how_ended", uuid):
            self._is_down(uuid)  # record the guest's own power-off first, if its time has come
            return self._state.how_ended(uuid)

    def on_change(self, look: Callable[[str], None]) -> None:
        self._notifier.tell(look)
        self._poller.start()

    def signal_shutdown(self, uuid: str) -> str:
        with self._call("signal_shutdown", uuid):
            self._is_down(uuid)
            record = self._in(uuid, PowerState.RUNNING)
            way = from_properties(record.properties).shutdown.over(self.faults.shutdown_of(uuid))
            answers = way.agent and time.time() >= record.booted_at + way.deaf
            if answers and way.agent == "hangs":
                self._call.pause(AGENT_SECONDS)
            with self._state.alone():
                self._hear(self._in(uuid, PowerState.RUNNING), way)
        self._timer.wind()
        return "agent" if answers and way.agent == "yes" else "acpi"

    def _hear(self, record: GuestRecord, way: ShutdownOrder) -> None:
        now = time.time()
        record.presses += 1
        lost = way.ignore or record.presses <= way.skip or now < record.booted_at + way.deaf
        if not lost and record.off_at is None:
            record.off_at, record.ends = now + way.delay, way.ends
        self._state.save(record)

    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        with self._call("wait_until_off", uuid), self._notifier.listening(uuid) as bell:
            return wait_for(bell, lambda: self._power(uuid) not in ALIVE, seconds, self._state.look_again)

    @abstractmethod
    def _is_down(self, uuid: str) -> None:
        """Implemented by the driver."""

    @abstractmethod
    def _power(self, uuid: str) -> PowerState:
        """Implemented by the driver."""

    @abstractmethod
    def _in(self, uuid: str, *powers: PowerState) -> GuestRecord:
        """Implemented by the driver."""

    @abstractmethod
    def _change(self, uuid: str, power: PowerState, detail: str, effect: Effect) -> None:
        """Implemented by the driver."""
