"""Ending a question to a database from outside: a server that says nothing says nothing of a time limit either."""

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
    """The connection a question goes over, while it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrapper: Any = None
        self.is_cut = False

    def open(self, alias: str) -> None:
        """This thread's connection to a database is the one, from now on."""
        with self._lock:
            self._wrapper = connections[alias]

    def close(self) -> None:
        """The question is over: whatever comes over the connection next is not to be cut."""
        with self._lock:
            self._wrapper = None

    def cut(self) -> None:
        """From any thread. Whoever waits gets an OperationalError now.

        PostgreSQL only: SQLite waits for locks, and that has a limit of its own; so has connecting.
        """
        with self._lock:
            if self._wrapper is None:
                return
            connection = getattr(self._wrapper, "connection", None)
            if connection is None or self._wrapper.vendor != "postgresql":
                return
            self.is_cut = True
            # suppressed: it is closed this very moment
            with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_after(alias: str, seconds: float, line: QueryConnection | None = None) -> Iterator[None]:
    """This thread's questions to a database end by then, with an OperationalError where they do not by themselves.

    `line` says afterwards whether they were ended.
    """
    line = line or QueryConnection()
    line.open(alias)
    _watch(line, time.monotonic() + seconds)
    try:
        yield
    finally:
        line.close()
        _forget(line)


_changed = threading.Condition()
_watched: dict[QueryConnection, float] = {}
_thread: threading.Thread | None = None
_wakes_at = 0.0  # when the thread looks again by itself, on the monotonic clock; 0: it is awake


def _watch(line: QueryConnection, end: float) -> None:
    """Most questions are answered long before their end: one that ends after the next look need not wake the thread."""
    global _thread  # one thread for all lines of the process; not one that a fork left behind
    with _changed:
        _watched[line] = end
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="line-cutter", daemon=True)
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
