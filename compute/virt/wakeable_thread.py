"""A thread that looks at something again and again: at its time, or when it is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable

CLOSE_SECONDS = 5.0


class WakeableThread:
    """`look()` answers in how many seconds it is to be called again; None: when somebody says `wake`.

    The thread starts with `start`, so that it costs nothing where nobody wants to know. Whoever says `wake` while
    it looks has it look once more.
    """

    def __init__(self, name: str, look: Callable[[], float | None]) -> None:
        self._name, self._look = name, look
        self._changed = threading.Condition()
        self._woken = self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on. Again is the same; after `close` it is nothing."""
        with self._changed:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wake(self) -> None:
        """Look now."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Look no more; a look that goes on has CLOSE_SECONDS."""
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
