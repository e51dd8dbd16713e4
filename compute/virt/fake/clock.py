"""The fake guests that were asked to shut down go down at their time; and what other processes do to guests."""

from __future__ import annotations

import time
from collections.abc import Callable

from compute.virt.base import PowerState
from compute.virt.fake.state import SHARED_SECONDS, StateFile
from compute.virt.wakeable_thread import WakeableThread


class GuestTimers:
    """One thread for all guests; it starts when there is something to wait for."""

    def __init__(self, state: StateFile, is_down: Callable[[str], None]) -> None:
        self._state, self._is_down = state, is_down
        self._rounds = WakeableThread("fake-clock", self._look)
        if state.next_down() is not None:  # asked for in the last process's life
            self.wind()

    def wind(self) -> None:
        """Some guest's time to go down was set."""
        self._rounds.start()
        self._rounds.wake()

    def close(self) -> None:
        """Stop; what is due stays in the state."""
        self._rounds.close()

    def _look(self) -> float | None:
        for uuid in self._state.due():
            self._is_down(uuid)
        next_down = self._state.next_down()
        return None if next_down is None else max(0.0, next_down - time.time())


class StateFilePoller:
    """Sees what other processes do to guests in a shared file; one thread, from when somebody wants to know it."""

    def __init__(self, state: StateFile, changed: Callable[[str], None]) -> None:
        self._state, self._changed = state, changed
        self._rounds = WakeableThread("fake-lookout", self._look)
        self._version = -1
        self._powers: dict[str, PowerState] = {}

    def start(self) -> None:
        """Without a file there are no others."""
        if self._version < 0 and self._state.file is not None:
            self._version, self._powers = self._state.version(), self._state.powers()
            self._rounds.start()

    def close(self) -> None:
        """Before the state is closed."""
        self._rounds.close()

    def _look(self) -> float:
        before, self._version = self._version, self._state.version()
        if self._version != before:
            was, self._powers = self._powers, self._state.powers()
            for uuid in was.keys() | self._powers.keys():
                if was.get(uuid) is not self._powers.get(uuid):
                    self._changed(uuid)
        return SHARED_SECONDS
