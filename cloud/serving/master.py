"""Gunicorn's first process: what its signals mean, and what its workers have to know of it.

SIGTERM     drain; again: nothing changes
SIGINT      the first: as SIGTERM; the second: now
SIGQUIT     now
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import sys
from types import FrameType
from typing import Any

# Bytes that master and workers share.
_shared = mmap.mmap(-1, 3)
_LEAVING, _INHERITED, _CUT = range(3)
# Signals of the master that met a worker between its fork and its own handlers.
early: list[int] = []


def when_ready(arbiter: Any) -> None:
    """Gunicorn's hook: it listens, and forks its workers next."""
    _shared[_INHERITED] = bool(arbiter.systemd)
    interrupts = itertools.count()

    def stop(sig: int, frame: FrameType | None) -> None:
        if os.getpid() != arbiter.pid:  # a worker, just forked
            early.append(sig)
            return
        if not _shared[_LEAVING]:
            _shared[_CUT] = False
            _shared[_LEAVING] = not arbiter.reexec_pid  # after USR2 the new master accepts
        if sig == signal.SIGINT and next(interrupts) == 0:
            sig = signal.SIGTERM
        arbiter.signal(sig, frame)

    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(sig, stop)


def on_exit(arbiter: Any) -> None:
    """Gunicorn's hook: exit code 1 when a request was cut off."""
    if _shared[_CUT]:
        sys.exit(1)


def no_successor(worker: Any) -> bool:
    """Whether a connection that a stopping worker does not take is taken by nobody.

    Otherwise its siblings take it, or, where systemd holds the socket, the API's next life.
    """
    return not _shared[_INHERITED] and bool(_shared[_LEAVING] or worker.ppid != os.getppid())


def was_cut() -> None:
    """A worker cut requests off."""
    _shared[_CUT] = True
