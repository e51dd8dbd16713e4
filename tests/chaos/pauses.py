"""Processes that are stopped for a while, as a machine that swaps or is moved does with them: SIGSTOP, then SIGCONT."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress


class Pauses:
    """Who is paused, and until when. Held by pidfd: a number that is another process's meanwhile is not signalled."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, pid: int, seconds: float) -> bool:
        """Stop it now; False when it is stopped already, or gone."""
        with self._lock:
            if name in self._until:
                return False
            try:
                handle = os.pidfd_open(pid)
                signal.pidfd_send_signal(handle, signal.SIGSTOP)
            except ProcessLookupError:
                return False
            self._until[name] = (handle, time.monotonic() + seconds)
            return True

    def end_due(self) -> None:
        """Those whose time is over go on."""
        with self._lock:
            for name in [name for name, (_, until) in self._until.items() if time.monotonic() >= until]:
                self._end(name)

    def end_all(self) -> None:
        """All go on."""
        with self._lock:
            for name in list(self._until):
                self._end(name)

    def _end(self, name: str) -> None:
        handle, _ = self._until.pop(name)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)
