"""Ask many cells at once, within one deadline. A cell that does not answer is DOWN: a result, not an error.

`cells.cell_threads` says which thread asks which cell. The circuit breaker (`cells.circuit_breaker`) remembers a failed
cell, which is DOWN at once until a probe finds it up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, OperationalError, connections

from cells import circuit_breaker, failure_reasons
from cells.cell_threads import AWAY, BUSY, DATABASE_AWAY, LATE, CellAnswers, CellFailure, ask_all, ask_here
from cells.context import target_cell
from cells.models import Cell
from cells.query_deadline import QueryConnection, cut_after

T = TypeVar("T")
__all__ = ["AWAY", "BUSY", "DATABASE_AWAY", "CellAnswers", "CellFailure", "ask_one", "gather", "probe_tables",
           "require_tables", "target_for_write"]  # fmt: skip
SECONDS_TO_CHANGE = 10.0  # for a change in a cell that has just answered
JUST = 1.0  # seconds
_answered_at: dict[str, float] = {}  # by cell: time.monotonic()


def gather(
    cells: Iterable[Cell],
    ask: Callable[[Cell], T],
    timeout: float | None = None,
    meanwhile: Callable[[list[T]], None] | None = None,
) -> CellAnswers[T]:
    """Run `ask(cell)` for all cells at once, each with its cell targeted. A database error makes a cell DOWN.

    Other exceptions are bugs and are raised. `timeout`: seconds for all cells together (default CELL_TIMEOUT). When
    some cells are late, `meanwhile` gets the answers that are there, so that they are processed by the deadline.
    """
    result: CellAnswers[T] = CellAnswers({}, {})
    asked = []
    for cell in cells:
        reason = circuit_breaker.known_down(cell.id)
        if reason:
            result.down[cell.id] = CellFailure(reason)
        else:
            asked.append(cell)
    end = time.monotonic() + (timeout or settings.CELL_TIMEOUT)
    if not (len(asked) == 1 and _is_warm(asked[0]) and ask_here(asked[0], ask, end, result)):
        ask_all(asked, ask, end, result, meanwhile)
    now = time.monotonic()
    for cell_id in result.answers:
        _answered_at[cell_id] = now
        circuit_breaker.answered(cell_id)
    for cell in asked:
        failed = result.down.get(cell.id)
        if failed is not None and failed.reason != BUSY:
            circuit_breaker.record_failure(cell.id, failed.reason)
    return result


def ask_one(cell: Cell, ask: Callable[[Cell], T]) -> T | CellFailure:
    """As `gather`, for a single cell."""
    gathered = gather([cell], ask)
    return gathered.answers[cell.id] if cell.id in gathered.answers else gathered.down[cell.id]


def _is_warm(cell: Cell) -> bool:
    """Whether this thread may ask the cell itself: a query can be interrupted at the deadline, connecting cannot.

    So the thread has a connection already, or the cell has just answered, so that connecting takes no time.
    """
    if time.monotonic() - _answered_at.get(cell.id, 0.0) < JUST:
        return True
    return cell.alias in connections.databases and connections[cell.alias].connection is not None


@contextmanager
def target_for_write(cell: Cell) -> Iterator[str]:
    """Target one cell, in this thread, to change it; not inside a transaction of its database.

    A query that hangs is interrupted. A failed cell is recorded as down and the error of its database is raised
    (DATABASE_AWAY); the commit may have succeeded all the same.
    """
    line = QueryConnection()
    try:
        with target_cell(cell) as alias, cut_after(alias, SECONDS_TO_CHANGE, line):
            yield alias
    except DATABASE_AWAY as exc:
        _failed(cell, LATE if line.is_cut else failure_reasons.describe(exc))
        raise
    except DatabaseError as exc:
        if not failure_reasons.is_database_failure(exc):
            raise
        _failed(cell, failure_reasons.describe(exc))
        raise OperationalError(str(exc)) from exc.__cause__


def _failed(cell: Cell, reason: str) -> None:
    connection = connections[cell.alias] if cell.alias in connections.databases else None
    if connection is None or connection.errors_occurred:  # else the global database failed
        circuit_breaker.record_failure(cell.id, reason)
    if connection is not None:
        connection.close()


def _look(cell_ids: Collection[str]) -> dict[str, str]:
    """Return what is still wrong, by cell that is down. A deleted cell is left out."""
    result: CellAnswers[None] = CellAnswers({}, {})
    try:
        cells = list(Cell.objects.filter(pk__in=cell_ids))
    finally:
        connections["default"].close()  # this thread probes rarely
    ask_all(cells, probe_tables, time.monotonic() + settings.CELL_TIMEOUT, result, is_look=True)
    return {cell_id: down.reason for cell_id, down in result.down.items()}


_asked_for: list[str] = []


def require_tables(*tables: str) -> None:
    """Add tables that every request needs in a cell's database. An app calls this when it is ready."""
    _asked_for.extend(tables)


def probe_tables(cell: Cell) -> None:
    """Read from the tables that every request needs: a database whose tables are locked counts as down."""
    with connections[cell.alias].cursor() as cursor:
        for table in _asked_for:
            cursor.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608  our own names


circuit_breaker.set_probe(_look)
