"""How quickly each cell's database and broker answer, all asked at once, within CELL_TIMEOUT."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from django.conf import settings

from cells import brokers, health, scatter
from cells.models import Cell

_executor = ThreadPoolExecutor(16, thread_name_prefix="broker-answers")
_asked: dict[str, Future[float]] = {}  # by URL: a broker that hangs holds one thread, however often it is asked
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds, or why there is none. Neither: there is nothing to ask."""

    seconds: float | None = None
    trouble: str = ""

    @property
    def text(self) -> str:
        """For people."""
        if self.seconds is None:
            return self.trouble or "-"
        return f"{self.seconds * 1000:.0f} ms" if self.seconds >= 0.001 else "under 1 ms"


@dataclass(frozen=True, slots=True)
class Cellular:
    """What one cell said; `outage` is the breaker's, when it is open."""

    database: Answer
    broker: Answer
    outage: health.Outage | None = None


def ask(cells: Iterable[Cell]) -> dict[str, Cellular]:
    """By cell id. Nothing is raised: what does not answer says why."""
    asked = list(cells)
    end = time.monotonic() + settings.CELL_TIMEOUT
    waiting = {cell.id: _broker(cell.broker_url) for cell in asked if cell.broker_url}
    gathered = scatter.gather(asked, _database)
    return {
        cell.id: Cellular(
            Answer(gathered.answers.get(cell.id), _why(gathered, cell.id)),
            _collect(waiting.get(cell.id), end), health.outage(cell.id),
        )
        for cell in asked
    }  # fmt: skip


def _why(gathered: scatter.Gathered[float], cell_id: str) -> str:
    down = gathered.down.get(cell_id)
    return down.reason if down else ""


def _database(cell: Cell) -> float:
    began = time.monotonic()
    scatter.touch(cell)
    return time.monotonic() - began


def _broker(url: str) -> Future[float]:
    with _lock:
        last = _asked.get(url)
        if last is None or last.done():
            last = _asked[url] = _executor.submit(_answers, url)
        return last


def _answers(url: str) -> float:
    began = time.monotonic()
    brokers.depths(url, [])
    return time.monotonic() - began


def _collect(future: Future[float] | None, end: float) -> Answer:
    if future is None:
        return Answer()
    try:
        return Answer(future.result(timeout=max(0.0, end - time.monotonic())))
    except FutureTimeout:
        return Answer(trouble=scatter.LATE)
    except Exception as error:  # every transport raises its own kinds, and all mean: not reached
        return Answer(trouble=type(error).__name__)
