"""The threads that ask cells, and what becomes of the question to one cell.

A single cell is asked in the thread of the request (`ask_here`). Cells in SQLite files are asked by one thread, one
after the other: such a query takes less time than waking a thread for it. Up to OWN_THREADS cells on database servers
are asked at the same time, by threads of their own; more of them by a few threads of the process. When these get no
further, each cell that is left is asked by a thread of its own. Those are bounded per cell, so that a cell that hangs
cannot use up the threads of the others. A query that hangs is interrupted at the deadline, so that its thread and
connection are free for the probe that finds the cell up.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from cells import failure_reasons
from cells.context import register, target_cell
from cells.database_urls import BadDatabaseUrl
from cells.models import Cell
from cells.query_deadline import QueryConnection, cut_at

T = TypeVar("T")
DATABASE_AWAY = (OperationalError, InterfaceError, BadDatabaseUrl, ImproperlyConfigured)
AWAY = (*DATABASE_AWAY, OSError)
LATE, BUSY = failure_reasons.SILENT, "this process is too busy to ask it"
THREADS_PER_CELL = 4
OWN_THREADS = 16  # cells on database servers that are asked by threads of their own
SHARED_THREADS = 4  # that ask one cell after the other
QUIET = 0.03  # seconds without an answer: then cells are asked by threads of their own, and `meanwhile` is called
STALLED = 10 * QUIET  # the same, while the shared threads get on with other requests
_shared = ThreadPoolExecutor(SHARED_THREADS, thread_name_prefix="cells")
_last_answer = 0.0  # of any cell to a shared thread, in time.monotonic()
_pools: dict[str, ThreadPoolExecutor] = {}
_given_up: dict[str, Future[None]] = {}  # by cell: done when one request that waits gives up
_pools_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class CellFailure:
    """A cell that did not answer, and why."""

    reason: str


@dataclass(slots=True)
class CellAnswers(Generic[T]):
    """The answers and the failures of the asked cells."""

    answers: dict[str, T]  # by cell id
    down: dict[str, CellFailure]

    def values(self) -> list[T]:
        """Return the answers of the cells that answered."""
        return list(self.answers.values())


@dataclass(slots=True)
class _CellQuery(Generic[T]):
    """One question to one cell. `given_up` is done when one of the requests that wait for the cell gives up."""

    cell: Cell
    given_up: Future[None]
    future: Future[T] = field(default_factory=Future)
    line: QueryConnection = field(default_factory=QueryConnection)

    def run(self, ask: Callable[[Cell], T], *, anew: bool = False) -> None:
        """Ask, unless every request has given the cell up."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(_ask_one(self.cell, ask, self.line, anew=anew))
        except BaseException as error:
            self.future.set_exception(error)


class _Queue(Generic[T]):
    """Questions that shared threads take one after the other."""

    def __init__(self, queries: Iterable[_CellQuery[T]], ask: Callable[[Cell], T]) -> None:
        self._left, self._ask = deque(queries), ask
        self._open, self._lock, self._answered = len(self._left), threading.Lock(), threading.Event()

    def work(self) -> None:
        """Ask until none is left."""
        global _last_answer
        for query in iter(self.take, None):
            query.run(self._ask)
            _last_answer = time.monotonic()
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._answered.set()

    def take(self) -> _CellQuery[T] | None:
        """Return the next question; None when none is left."""
        with suppress(IndexError):
            return self._left.popleft()
        return None

    def wait(self, end: float) -> bool:
        """Wait while the thread gets on, until `end` at most; return whether all cells have answered."""
        before, since = self._open, time.monotonic()
        while not self._answered.wait(max(0.0, min(QUIET, end - time.monotonic()))):
            now = time.monotonic()
            if self._open < before:
                before, since = self._open, now
            elif now >= end or now - since >= STALLED or now - _last_answer >= QUIET:
                return False
        return True


def ask_here(cell: Cell, ask: Callable[[Cell], T], end: float, result: CellAnswers[T]) -> bool:
    """Ask one cell in this thread: handing the question to another one takes longer than most answers.

    Return False when that failed before the deadline: the connection may be an old one, of a server that has been
    restarted since. Whether it works is not asked first: after a deadline Django would connect anew, and wait again.
    """
    line = QueryConnection()
    try:
        with cut_at(line, end):
            result.answers[cell.id] = _ask_one(cell, ask, line, anew=False, is_trusted=True)
    except AWAY:
        if not line.is_cut and time.monotonic() < end:
            return False
        result.down[cell.id] = CellFailure(LATE)
    return True


def ask_all(
    cells: Iterable[Cell],
    ask: Callable[[Cell], T],
    end: float,
    result: CellAnswers[T],
    meanwhile: Callable[[list[T]], None] | None = None,
    *,
    is_look: bool = False,
) -> None:
    waiting = [_CellQuery[T](cell, _next_given_up(cell.id)) for cell in cells]
    if not _have_all_said(waiting, ask, end, is_look=is_look) and meanwhile is not None:
        _while_some_are_late(waiting, end, meanwhile)
    for question in waiting:
        _collect(question, end, result)


def _have_all_said(queries: list[_CellQuery[T]], ask: Callable[[Cell], T], end: float, *, is_look: bool) -> bool:
    """Have all cells asked; return whether all have answered, False as soon as none does for QUIET seconds.

    Then each has a thread that asks it, or will have one.
    """
    left, threads = queries, 0 if is_look else _shared_threads([query.cell for query in queries])
    if threads:
        shared = _Queue(queries, ask)
        for _ in range(threads):
            _shared.submit(shared.work)
        if shared.wait(end):
            return True
        left = list(iter(shared.take, None))
    for query in left:
        _pool(query.cell.id).submit(query.run, ask, anew=is_look)
    return not threads and _get_on([query.future for query in queries], end)


def _shared_threads(cells: list[Cell]) -> int:
    """Return how many shared threads ask the cells of a request; 0: each is asked by a thread of its own.

    SQLite works in the thread that asks. Two threads would be slower, as each waits for Python's interpreter lock after
    each query of the other: for a page of 50 cells, one takes 43 to 52 ms, two 59 to 62, and one for each cell 620. A
    database server works meanwhile: a page of 10 cells takes 50 ms with a thread for each cell, and 100 with one.
    """
    if len(cells) < 2:
        return 0
    if all(cell.database_url.startswith("sqlite:") for cell in cells):
        return 1
    return SHARED_THREADS if len(cells) > OWN_THREADS else 0


def _get_on(futures: Collection[Future[Any]], end: float) -> bool:
    """Return whether all are done; False as soon as none of them finishes for QUIET seconds."""
    before = -1
    while before < (said := sum(future.done() for future in futures)) < len(futures):
        before = said
        wait(futures, min(QUIET, max(0.0, end - time.monotonic())))
    return said == len(futures)


def _while_some_are_late(questions: Iterable[_CellQuery[T]], end: float, meanwhile: Callable[[list[T]], None]) -> None:
    late = list(questions)
    while True:
        there = [one.future for one in late if one.future.done()]
        late = [one for one in late if not (one.future.done() or one.given_up.done())]
        if not late or time.monotonic() >= end:
            return
        if there:
            meanwhile([future.result() for future in there if future.exception() is None])
        _wait_for_one(late, end)


def _collect(question: _CellQuery[T], end: float, result: CellAnswers[T]) -> None:
    """The request that asked first gives up first, and all others with it: they would only get that answer later."""
    cell_id = question.cell.id
    if not question.future.done():
        _wait_for_one([question], end)
    try:
        result.answers[cell_id] = question.future.result(timeout=0)
    except FutureTimeout:
        is_busy = question.future.cancel() and not question.given_up.done()
        question.line.cut()
        result.down[cell_id] = CellFailure(BUSY if is_busy else LATE)
        if not is_busy:
            _give_up(cell_id)
    except AWAY as exc:
        result.down[cell_id] = CellFailure(failure_reasons.describe(exc))


def _wait_for_one(questions: list[_CellQuery[T]], end: float) -> None:
    """Wait until one of them is answered or given up."""
    told: list[Future[Any]] = [future for one in questions for future in (one.future, one.given_up)]
    wait(told, max(0.0, end - time.monotonic()), FIRST_COMPLETED)


def _next_given_up(cell_id: str) -> Future[None]:
    with _pools_lock:
        return _given_up.get(cell_id) or _given_up.setdefault(cell_id, Future())


def _give_up(cell_id: str) -> None:
    with _pools_lock:
        told = _given_up.pop(cell_id, None)
    if told is not None:
        told.set_result(None)


def _ask_one(
    cell: Cell, ask: Callable[[Cell], T], line: QueryConnection, *, anew: bool, is_trusted: bool = False
) -> T:
    """Ask; with `anew` over a new connection, since an old one may work where the server accepts no new ones.

    `is_trusted`: an open connection is used without a query that asks whether it works.
    """
    alias = register(cell)
    if anew:
        connections[alias].close()
    connections[alias].close_if_unusable_or_obsolete()
    connections[alias].health_check_done = is_trusted  # type: ignore[attr-defined]  # not in the stubs
    line.open(alias)
    try:
        with target_cell(alias):
            return ask(cell)
    except AWAY as exc:
        connections[alias].close()
        _drop_sockets(exc)
        raise
    except DatabaseError as exc:
        if not failure_reasons.is_database_failure(exc):
            raise
        connections[alias].close()
        raise OperationalError(str(exc)) from exc.__cause__
    finally:
        line.close()


def _drop_sockets(failed: BaseException) -> None:
    """Free the sockets of a failed connection: the traceback's frames hold them until some garbage collection."""
    error: BaseException | None = failed
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _pool(cell_id: str) -> ThreadPoolExecutor:
    with _pools_lock:
        pool = _pools.get(cell_id)
        if pool is None:
            pool = ThreadPoolExecutor(THREADS_PER_CELL, thread_name_prefix=f"cell-{cell_id[:8]}")
            _pools[cell_id] = pool
        return pool
