"""Client-side query deadline: shut the socket down, because statement_timeout needs a server that is alive."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections


class QueryConnection:
    """The connection of a query, while the query runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrapper: Any = None
        self.is_cut = False

    def open(self, alias: str) -> None:
        """Take this thread's connection to the database as the one of the query."""
        with self._lock:
            self._wrapper = connections[alias]

    def close(self) -> None:
        """End the query: the next use of the connection must not be interrupted."""
        with self._lock:
            self._wrapper = None

    def cut(self) -> None:
        """Shut the socket down, from any thread. The thread that waits gets an OperationalError now.

        PostgreSQL only: SQLite waits only for locks, which has a limit of its own; so has connecting.
        """
        with self._lock:
            if self._wrapper is None:
                return
            connection = getattr(self._wrapper, "connection", None)
            if connection is None or self._wrapper.vendor != "postgresql":
                return
            self.is_cut = True
            # suppressed: the connection may close at this moment
            with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_after(alias: str, seconds: float, line: QueryConnection | None = None) -> Iterator[None]:
    """End this thread's queries to a database after `seconds`: they raise OperationalError.

    Afterwards `line.is_cut` tells whether a query was interrupted.
    """
    line = line or QueryConnection()
    line.open(alias)
    try:
        with cut_at(line, time.monotonic() + seconds):
            yield
    finally:
        line.close()


@contextmanager
def cut_at(line: QueryConnection, end: float) -> Iterator[None]:
    """Interrupt the query that has `line` open at `end`, a time of time.monotonic()."""
    _watch(line, end)
    try:
        yield
    finally:
        _forget(line)


_changed = threading.Condition()
_watched: dict[QueryConnection, float] = {}
_thread: threading.Thread | None = None
_wakes_at = 0.0  # monotonic time of the thread's next wake-up; 0: it is awake


def _watch(line: QueryConnection, end: float) -> None:
    """Add a deadline. Most queries end long before theirs: one after the next wake-up need not wake the thread."""
    global _thread  # one per process; a thread does not survive a fork
    with _changed:
        _watched[line] = end
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="query-deadline", daemon=True)
            _thread.start()
        elif end < _wakes_at:
            _changed.notify()


def _forget(line: QueryConnection) -> None:
    with _changed:
        _watched.pop(line, None)


def _run() -> None:
    global _wakes_at
    while True:
        with _changed:
            now = time.monotonic()
            late = [line for line, end in _watched.items() if end <= now]
            for line in late:
                _watched.pop(line)
            if not late:
                _wakes_at = min(_watched.values(), default=math.inf)
                _changed.wait(_wakes_at - now if _watched else None)
                _wakes_at = 0.0
        for line in late:
            line.cut()
