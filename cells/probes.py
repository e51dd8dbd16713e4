"""How quickly each cell's database and broker answer; all are asked at once, within CELL_TIMEOUT."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from django.conf import settings

from cells import broker_probes, brokers, circuit_breaker, scatter
from cells.models import Cell

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The seconds until the answer, or why there is none. Neither: there is nothing to ask."""

    seconds: float | None = None
    trouble: str = ""

    @property
    def text(self) -> str:
        """The result for people."""
        if self.seconds is None:
            return self.trouble or "-"
        return f"{self.seconds * 1000:.0f} ms" if self.seconds >= 0.001 else "under 1 ms"


@dataclass(frozen=True, slots=True)
class CellProbe(Generic[T]):
    """The answers of one cell. `outage`: of its open breaker. `read`: None when the cell is down."""

    database: ProbeResult
    broker: ProbeResult
    read: T | None = None
    outage: circuit_breaker.Outage | None = None


def ask(cells: Iterable[Cell]) -> dict[str, CellProbe[None]]:
    """Return the probes by cell id. What does not answer is a result with a reason, not an exception."""
    return ask_and_read(cells, lambda _: None)


def ask_and_read(cells: Iterable[Cell], read: Callable[[Cell], T]) -> dict[str, CellProbe[T]]:
    """As `ask`, plus the result of `read` in the targeted cell. Its time is not counted."""
    asked = list(cells)
    end = time.monotonic() + settings.CELL_TIMEOUT
    waiting = {cell.id: _ask_broker(cell.broker_url) for cell in asked if cell.broker_url}
    gathered = scatter.gather(asked, lambda cell: (timed(cell), read(cell)))
    return {cell.id: _cellular(cell, gathered, _broker(waiting.get(cell.id), end)) for cell in asked}


def timed(cell: Cell) -> float:
    """Return the seconds that the targeted cell's database takes to answer."""
    began = time.monotonic()
    scatter.probe_tables(cell)
    return time.monotonic() - began


def _ask_broker(broker_url: str) -> Future[float]:
    return broker_probes.ask(broker_url, "answers", partial(_seconds, broker_url))


def _seconds(broker_url: str) -> float:
    began = time.monotonic()
    brokers.depths(broker_url, [])
    return time.monotonic() - began


def _cellular(cell: Cell, gathered: scatter.CellAnswers[tuple[float, T]], broker: ProbeResult) -> CellProbe[T]:
    if cell.id in gathered.down:
        database = ProbeResult(trouble=gathered.down[cell.id].reason)
        return CellProbe(database, broker, outage=circuit_breaker.outage(cell.id))
    seconds, read = gathered.answers[cell.id]
    return CellProbe(ProbeResult(seconds), broker, read)


def _broker(future: Future[float] | None, end: float) -> ProbeResult:
    if future is None:
        return ProbeResult()
    said = broker_probes.collect(future, end)
    return ProbeResult(trouble=said.reason) if isinstance(said, broker_probes.BrokerUnavailable) else ProbeResult(said)
