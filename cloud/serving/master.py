"""Gunicorn's master: the meaning of its signals, and what it shares with its workers.

SIGTERM     drain; again: no effect
SIGINT      the first: as SIGTERM; the second: end now
SIGQUIT     end now
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
# Signals that a worker got after its fork, before it set its own handlers.
early: list[int] = []


def when_ready(arbiter: Any) -> None:
    """Gunicorn's hook: the master listens, and forks its workers next."""
    _shared[_INHERITED] = bool(arbiter.systemd)
    interrupts = itertools.count()

    def stop(sig: int, frame: FrameType | None) -> None:
        if os.getpid() != arbiter.pid:  # a worker that was just forked
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
    """Gunicorn's hook: exit with code 1 when a request was interrupted."""
    if _shared[_CUT]:
        sys.exit(1)


def no_successor(worker: Any) -> bool:
    """Return whether no process takes a connection that a stopping worker leaves.

    Otherwise the other workers take it, or, where systemd holds the socket, the API's next incarnation.
    """
    return not _shared[_INHERITED] and bool(_shared[_LEAVING] or worker.ppid != os.getppid())


def was_cut() -> None:
    """Record that a worker interrupted requests."""
    _shared[_CUT] = True
