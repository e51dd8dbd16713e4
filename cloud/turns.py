"""Requests of one process take turns, in the order they came.

Python runs one thread of a process at a time. Requests that share it by the millisecond are all done late, and those
with much to do far later than the others. One after the other, they wait as long on the average, and none is last
again and again. A turn ends with its request; when the request begins to wait for something (`leave`); or after a
while, for then it waits most likely, and nobody is to wait with it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LONGEST = 0.5  # seconds
_here = threading.local()


@dataclass(slots=True, eq=False)
class _Turn:
    called: threading.Event = field(default_factory=threading.Event)
    until: float = 0.0  # monotonic


class Turns:
    """Whose turn it is, and who comes next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Turn] = deque()
        self._current: _Turn | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """In turn: at the latest when each of those before has had LONGEST."""
        mine = _Turn()
        with self._lock:
            self._waiting.append(mine)
            self._call_next()
        while not mine.called.wait(self._rest()):
            with self._lock:
                self._call_next()
        _here.leave = lambda: self._ends(mine)
        try:
            yield
        finally:
            leave()

    def _rest(self) -> float:
        current = self._current
        return max(0.0, current.until - time.monotonic()) if current is not None else 0.0

    def _ends(self, turn: _Turn) -> None:
        with self._lock:
            if self._current is turn:
                self._current = None
                self._call_next()

    def _call_next(self) -> None:
        now = time.monotonic()
        if self._waiting and (self._current is None or self._current.until <= now):
            self._current = self._waiting.popleft()
            self._current.until = now + LONGEST
            self._current.called.set()


def leave() -> None:
    """What this thread does next is to wait: somebody else's turn. Nothing, where nobody takes turns."""
    ends, _here.leave = getattr(_here, "leave", None), None
    if ends is not None:
        ends()
