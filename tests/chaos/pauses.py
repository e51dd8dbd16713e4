"""Processes that are stopped for a while, as a machine that swaps or is moved does with them: SIGSTOP, then SIGCONT."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress


class Pauses:
    """Who is paused. Held by pidfd: a number that is another process's meanwhile is not signalled."""

    def __init__(self) -> None:
        self._paused: dict[str, tuple[int, threading.Timer]] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, pid: int, seconds: float) -> bool:
        """Stop it now, and have it go on after so many seconds; False when it is stopped already, or gone."""
        with self._lock:
            if name in self._paused:
                return False
            try:
                handle = os.pidfd_open(pid)
                signal.pidfd_send_signal(handle, signal.SIGSTOP)
            except ProcessLookupError:
                return False
            timer = threading.Timer(seconds, self._end, [name, handle])
            timer.daemon = True
            self._paused[name] = (handle, timer)
            timer.start()
            return True

    def end_all(self) -> None:
        """All go on."""
        for name, (handle, timer) in list(self._paused.items()):
            timer.cancel()
            self._end(name, handle)

    def _end(self, name: str, handle: int) -> None:
        with self._lock:
            if self._paused.get(name, (None, None))[0] != handle:
                return  # it goes on already
            del self._paused[name]
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
            os.close(handle)
