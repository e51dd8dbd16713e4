"""The fake guests that were asked to shut down go down at their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from compute.virt.base import PowerState
from compute.virt.fake_state import SHARED_SECONDS, State


class Clock:
    """One thread for all guests; it starts when there is something to wait for."""

    def __init__(self, state: State, is_down: Callable[[str], None]) -> None:
        self._state, self._is_down = state, is_down
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        if state.next_down() is not None:  # asked for in the last process's life
            self.wind()

    def wind(self) -> None:
        """Some guest's time to go down was set."""
        with self._changed:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="fake-clock", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop; what is due stays in the state."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._closing:
            for uuid in self._state.due():
                self._is_down(uuid)
            with self._changed:
                next_down = self._state.next_down()
                left = None if next_down is None else next_down - time.time()
                if not self._closing and (left is None or left > 0):
                    self._changed.wait(left)


class Lookout:
    """Sees what other processes do to guests in a shared file; one thread, from when somebody wants to know it."""

    def __init__(self, state: State, changed: Callable[[str], None]) -> None:
        self._state, self._changed = state, changed
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Without a file there are no others."""
        if self._thread is None and self._state.file is not None:
            seen = self._state.version(), self._state.powers()
            self._thread = threading.Thread(target=self._run, args=seen, name="fake-lookout", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Before the state is closed."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self, version: int, powers: dict[str, PowerState]) -> None:
        while not self._closing.wait(SHARED_SECONDS):
            before, version = version, self._state.version()
            if version == before:
                continue
            was, powers = powers, self._state.powers()
            for uuid in was.keys() | powers.keys():
                if was.get(uuid) is not powers.get(uuid):
                    self._changed(uuid)
