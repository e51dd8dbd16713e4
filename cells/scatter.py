"""Ask many cells at once, within one deadline. A cell that does not answer is DOWN: an answer, not an error.

Threads are bounded per cell, so a cell that hangs cannot use up what the others need. A cell that just
failed is remembered (`cells.health`) and answers DOWN at once until somebody looks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, ProgrammingError, connections

from cells import health
from cells.context import register, target_cell
from cells.models import Cell
from cells.urls import BadDatabaseUrl
from cloud import log

logger = log.get(__name__)
T = TypeVar("T")
AWAY = (OperationalError, InterfaceError, BadDatabaseUrl, ImproperlyConfigured, OSError)
UNDEFINED_TABLE = "42P01"  # PostgreSQL: between cell_create and cell_migrate
THREADS_PER_CELL = 4
_pools: dict[str, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Down:
    """A cell that did not answer, and why."""

    reason: str


@dataclass(slots=True)
class Gathered(Generic[T]):
    """What each asked cell said."""

    answers: dict[str, T]  # by cell id
    down: dict[str, Down]

    def values(self) -> list[T]:
        """The answers of the cells that answered."""
        return list(self.answers.values())


def gather(cells: Iterable[Cell], ask: Callable[[Cell], T], timeout: float | None = None) -> Gathered[T]:
    """Run `ask(cell)` with each cell targeted, all at once; errors of a database are DOWN.

    Other exceptions are bugs and are raised. `timeout` in seconds (default CELL_TIMEOUT) is for all.
    """
    end = time.monotonic() + (timeout or settings.CELL_TIMEOUT)
    result: Gathered[T] = Gathered({}, {})
    waiting: dict[str, Future[T]] = {}
    for cell in cells:
        reason = health.known_down(cell.id)
        if reason:
            result.down[cell.id] = Down(reason)
        else:
            waiting[cell.id] = _pool(cell.id).submit(_ask_one, cell, ask)
    for cell_id, future in waiting.items():
        _collect(cell_id, future, end, result)
    return result


def one(cell: Cell, ask: Callable[[Cell], T]) -> T | Down:
    """As `gather` for a single cell."""
    gathered = gather([cell], ask)
    return gathered.answers[cell.id] if cell.id in gathered.answers else gathered.down[cell.id]


def _collect(cell_id: str, future: Future[T], end: float, result: Gathered[T]) -> None:
    try:
        result.answers[cell_id] = future.result(timeout=max(0.0, end - time.monotonic()))
    except FutureTimeout:
        future.cancel()
        result.down[cell_id] = Down("did not answer in time")
    except AWAY as exc:
        result.down[cell_id] = Down(type(exc).__name__)
    else:
        health.seen_up(cell_id)
        return
    health.seen_down(cell_id, result.down[cell_id].reason)
    logger.warning("cell.down", cell=cell_id, reason=result.down[cell_id].reason)


def _ask_one(cell: Cell, ask: Callable[[Cell], T]) -> T:
    alias = register(cell)
    connections[alias].close_if_unusable_or_obsolete()
    try:
        with target_cell(alias):
            return ask(cell)
    except AWAY:
        connections[alias].close()
        raise
    except ProgrammingError as exc:
        if getattr(exc.__cause__, "sqlstate", "") == UNDEFINED_TABLE:
            raise OperationalError("the cell has no tables yet: run cell_migrate") from exc
        raise


def _pool(cell_id: str) -> ThreadPoolExecutor:
    with _pools_lock:
        pool = _pools.get(cell_id)
        if pool is None:
            pool = ThreadPoolExecutor(THREADS_PER_CELL, thread_name_prefix=f"cell-{cell_id[:8]}")
            _pools[cell_id] = pool
        return pool
