"""Requests of one process take turns, in the order they came.

Python runs one thread of a process at a time. Requests that share it by the millisecond are all done late, and those
with much to do far later than the others. One after the other, they wait as long on the average, and none is last
again and again. While a request waits for something (`away`) others have their turn; then it goes on, before those
that came later. A turn ends with its request, or after a while, for then it waits most likely for something that
nobody told us of, and nobody is to wait with it.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

LONGEST = 0.5  # seconds
_here = threading.local()


class Machine(Protocol):
    """Where this process gets its share of the machine, whoever's turn it is in it."""

    def take(self, came: float) -> None:
        """Wait for it; nothing, if the process has it already."""

    def give(self) -> None:
        """Let others have it."""


@dataclass(slots=True, order=True)
class _Turn:
    number: int  # who came first has the smallest
    came: float = field(default_factory=time.monotonic, compare=False)
    called: threading.Event = field(default_factory=threading.Event, compare=False)
    until: float = field(default=0.0, compare=False)  # monotonic


class Turns:
    """Whose turn it is, and who comes next."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: list[_Turn] = []  # a heap
        self._current: _Turn | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """In turn: at the latest when each of those before has had LONGEST."""
        mine = _Turn(next(self._numbers))
        self._take(mine)
        _here.turn = self, mine
        try:
            yield
        finally:
            _here.turn = None
            self._end(mine)

    @contextmanager
    def _away(self, turn: _Turn) -> Iterator[None]:
        self._end(turn)
        try:
            yield
        finally:
            self._take(turn)

    def _take(self, turn: _Turn) -> None:
        turn.called.clear()
        with self._lock:
            heapq.heappush(self._waiting, turn)
            self._call_next()
        while not turn.called.wait(self._rest()):
            with self._lock:
                self._call_next()
        if self._machine is not None:
            self._machine.take(turn.came)
        turn.until = time.monotonic() + LONGEST

    def _rest(self) -> float:
        current = self._current
        return max(0.0, current.until - time.monotonic()) if current is not None else 0.0

    def _end(self, turn: _Turn) -> None:
        with self._lock:
            if self._current is turn:
                self._current = None
                if self._machine is not None:
                    self._machine.give()
                self._call_next()

    def _call_next(self) -> None:
        now = time.monotonic()
        if self._waiting and (self._current is None or self._current.until <= now):
            self._current = heapq.heappop(self._waiting)
            self._current.until = now + 2 * LONGEST  # it has to wait for the machine yet
            self._current.called.set()


@contextmanager
def away() -> Iterator[None]:
    """What this thread does in the block is to wait: the turn of others. Nothing, where nobody takes turns."""
    turns, mine = getattr(_here, "turn", None) or (None, None)
    if turns is None:
        yield
        return
    with turns._away(mine):
        yield
