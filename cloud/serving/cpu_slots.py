"""As many requests at once as there are cores, of all processes of the API: first come, first served.

Each process works on one request at a time (`cloud.serving.fair_queue`). More of them than cores would share the cores
by the millisecond, each process as much as any other: then those end far later whose process has more to do.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

LONGEST = 0.5  # seconds somebody waits for a place; and has one, for then he waits most likely, for a slow client say


class Places:
    """Made in the master, used in its workers. `count` places; each process holds one at most.

    `processes`: more than are ever there at once; one for which no row is left takes no place.
    """

    def __init__(self, count: int, processes: int) -> None:
        self.count, self._processes = count, processes
        self._table = memoryview(mmap.mmap(-1, 16 * processes)).cast("d")  # each: since when it waits; has one
        self._notifier = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(processes)]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  its lock dies with whoever holds it; a semaphore's does not
        self._lock = threading.Lock()
        self._owners = memoryview(mmap.mmap(-1, 8 * processes)).cast("q")  # by age, which is never 0
        self._mine: int | None = None

    def is_for(self, worker: Any) -> None:
        """This process is that worker of gunicorn."""
        with self._alone():
            self._mine = next((row for row, owner in enumerate(self._owners) if not owner), None)
            if self._mine is not None:
                self._owners[self._mine] = worker.age

    def gone(self, worker: Any) -> None:
        """It ended, perhaps in the middle of a request."""
        for row in [row for row, owner in enumerate(self._owners) if owner == worker.age]:
            self._let_go(row)
            self._owners[row] = 0

    def take(self, came: float) -> None:
        """Wait for a place. `came`: monotonic seconds, by which it is decided who is first."""
        if self._mine is None:
            return
        end = time.monotonic() + LONGEST
        with self._alone():
            if self._holds(self._mine):  # of a request that had its turn for too long
                self._table[2 * self._mine + 1] = time.monotonic()
            self._table[2 * self._mine] = came
            self._call()
        while not self._holds(self._mine):
            if not select.select([self._notifier[self._mine]], [], [], max(0.0, end - time.monotonic()))[0]:
                with self._alone():
                    self._table[2 * self._mine + 1] = time.monotonic()
            with suppress(BlockingIOError):
                os.eventfd_read(self._notifier[self._mine])

    def give(self) -> None:
        """Somebody else's, now."""
        if self._mine is not None:
            self._let_go(self._mine)

    def _let_go(self, process: int) -> None:
        with self._alone():
            self._table[2 * process] = self._table[2 * process + 1] = 0.0
            self._call()

    def _holds(self, process: int) -> bool:
        return self._table[2 * process + 1] > 0

    def _call(self) -> None:
        now, free, waiting = time.monotonic(), self.count, []
        for process in range(self._processes):
            came, since = self._table[2 * process], self._table[2 * process + 1]
            if since:
                free -= now - since < LONGEST
            elif came:
                waiting.append((came, process))
        for _, process in sorted(waiting)[: max(0, free)]:
            self._table[2 * process + 1] = now
            os.eventfd_write(self._notifier[process], 1)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


of_machine: Places | None = None  # set by the master; None where there are as many as processes
