"""A thread that runs a check repeatedly: at a given time, or when it is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable

CLOSE_SECONDS = 5.0


class WakeableThread:
    """A thread that calls `look()`, which returns the seconds until its next call, or None to sleep until `wake()`.

    The thread starts with `start()`, so an unused one costs nothing. A `wake()` during a check leads to one more check.
    """

    def __init__(self, name: str, look: Callable[[], float | None]) -> None:
        self._name, self._look = name, look
        self._changed = threading.Condition()
        self._woken = self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. A second call, or one after `close`, has no effect."""
        with self._changed:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Call `look()` now."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop; wait up to CLOSE_SECONDS for a check in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._begins():
            pause = self._look()
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._closing, pause)

    def _begins(self) -> bool:
        with self._changed:
            self._woken = False
            return not self._closing
