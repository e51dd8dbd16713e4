"""Connections spread evenly: a process of the API that has more of them than another accepts a moment later.

All its processes wait at one socket, and whoever is awake takes what comes. A client keeps its connection, so a
process that took more than its share would be slower for all of them, for as long as they stay.
"""

from __future__ import annotations

import mmap
from typing import Any

MOMENT, LONGEST = 0.05, 0.1  # seconds, for each connection more than the least; in all
_SLOTS, _LEAVES, _NOT_THERE = 1024, 0xFFFE, 0xFFFF
_counts = memoryview(mmap.mmap(-1, 2 * _SLOTS)).cast("H")  # of the master and its workers
for _slot in range(_SLOTS):
    _counts[_slot] = _NOT_THERE


def tell(worker: Any, connections: int) -> None:
    """This many are open in this process, and it accepts more."""
    _counts[worker.age % _SLOTS] = min(connections, _LEAVES - 1)


def leaves(worker: Any) -> None:
    """It takes no share any more; the socket it still has."""
    _counts[worker.age % _SLOTS] = _LEAVES


def gone(_arbiter: Any, worker: Any) -> None:
    """It has no socket any more. Gunicorn's hook, too: it was killed, perhaps."""
    _counts[worker.age % _SLOTS] = _NOT_THERE


def all_gone() -> bool:
    """Whether no process has the socket; two that leave at the same moment may both hear yes."""
    return min(_counts) == _NOT_THERE


def patience(connections: int) -> float:
    """Seconds to leave the next connection to a process that has fewer; never for long, for that one may hang."""
    return min(MOMENT * max(connections - min(_counts), 0), LONGEST)
