"""The threads of the fake driver: guests that power off at their time, and changes that other processes make."""

from __future__ import annotations

import time
from collections.abc import Callable

from compute.virt.base import PowerState
from compute.virt.fake.state import SHARED_SECONDS, StateFile
from compute.virt.wakeable_thread import WakeableThread


class GuestTimers:
    """One thread that powers off all guests whose time has come; it starts when the first guest has such a time."""

    def __init__(self, state: StateFile, is_down: Callable[[str], None]) -> None:
        self._state, self._is_down = state, is_down
        self._rounds = WakeableThread("fake-guest-timer", self._look)
        if state.next_down() is not None:  # an earlier process set it
            self.wind()

    def wind(self) -> None:
        """Start or wake the thread: the time at which a guest goes off was set."""
        self._rounds.start()
        self._rounds.wake()

    def close(self) -> None:
        """Stop the thread; the times stay in the state."""
        self._rounds.close()

    def _look(self) -> float | None:
        for uuid in self._state.due():
            self._is_down(uuid)
        next_down = self._state.next_down()
        return None if next_down is None else max(0.0, next_down - time.time())


class StateFilePoller:
    """One thread that polls a shared state file for changes by other processes; it starts when there is a listener."""

    def __init__(self, state: StateFile, changed: Callable[[str], None]) -> None:
        self._state, self._changed = state, changed
        self._rounds = WakeableThread("fake-power-poller", self._look)
        self._version = -1
        self._powers: dict[str, PowerState] = {}

    def start(self) -> None:
        """Start polling; without a state file there are no other processes."""
        if self._version < 0 and self._state.file is not None:
            self._version, self._powers = self._state.version(), self._state.powers()
            self._rounds.start()

    def close(self) -> None:
        """Stop polling. Call it before the state is closed."""
        self._rounds.close()

    def _look(self) -> float:
        before, self._version = self._version, self._state.version()
        if self._version != before:
            was, self._powers = self._powers, self._state.powers()
            for uuid in was.keys() | self._powers.keys():
                if was.get(uuid) is not self._powers.get(uuid):
                    self._changed(uuid)
        return SHARED_SECONDS
