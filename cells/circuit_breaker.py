"""Circuit breakers of cells: one per cell and process, so that only the first request after a failure waits.

A failed cell is DOWN at once for all requests, until a probe by the breaker's own thread (never a request) finds it up.
The pause between two probes doubles up to CELL_RETRY_INTERVAL. A cell that flaps is damped: its next failure continues
the same outage, in records and logs, and is probed less often from its beginning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from django.conf import settings

from cells import failure_reasons, outages
from cloud import log

logger = log.get(__name__)
FIRST_PAUSE = 0.25  # share of CELL_RETRY_INTERVAL; it doubles up to 1
_changed = threading.Condition()


@dataclass(frozen=True, slots=True)
class Outage:
    """The outage of a cell that is held to be down."""

    reason: str
    since: float = field(default_factory=time.time)  # Unix time
    looks: int = 0
    next_look: float = 0.0  # monotonic
    times: int = 1  # failures so far: more than one when the cell flaps

    @property
    def seconds_until_look(self) -> float:
        """Seconds until the next probe."""
        return max(0.0, self.next_look - time.monotonic())


_down: dict[str, Outage] = {}
_lately: dict[str, tuple[Outage, float]] = {}  # by recovered cell: outage, and when (monotonic) it is over
_look: Callable[[Collection[str]], Mapping[str, str]] | None = None
_then: list[Callable[[], None]] = []  # callbacks for a cell that is back
_thread: threading.Thread | None = None


def known_down(cell_id: str) -> str:
    """Return why this process holds the cell to be down; "" when it is up."""
    found = _down.get(cell_id)
    return found.reason if found else ""


def outage(cell_id: str) -> Outage | None:
    """Return the outage of a cell; None when the cell is up."""
    return _down.get(cell_id)


def record_failure(cell_id: str, reason: str) -> None:
    """Record a failure and start to probe; a cell that is down already gets the new reason."""
    with _changed:
        before = _down.get(cell_id)
        if before is None:
            _down[cell_id] = _begun(cell_id, reason)
        else:
            _down[cell_id] = replace(before, reason=reason)
        _start()
        _changed.notify_all()


def _begun(cell_id: str, reason: str) -> Outage:
    last, until = _lately.pop(cell_id, (None, 0.0))
    if last is None or until < time.monotonic():
        found = Outage(reason)
        outages.open_outage(cell_id, reason, found.since)
        logger.warning("cell.down", cell=cell_id, reason=reason)
        return _next(found)
    times = last.times + 1
    outages.reopen(cell_id, reason)
    if _should_log(times):
        logger.warning("cell.flapping", cell=cell_id, reason=reason, times=times)
    return _next(Outage(reason, last.since, looks=times - 1, times=times))


def _should_log(times: int) -> bool:
    """Return True for the 1st, 2nd, 4th, 8th … time."""
    return times & (times - 1) == 0


def answered(cell_id: str) -> None:
    """Record the answer to a request that was sent before. It closes the breaker only of a cell that was silent."""
    found = _down.get(cell_id)
    if found is not None and found.reason == failure_reasons.SILENT:
        record_recovery(cell_id)


def record_recovery(cell_id: str) -> None:
    """Record that the cell answers: close its breaker. A no-op when the cell is up."""
    if cell_id in _down:
        with _changed:
            found = _down.pop(cell_id, None)
            if found is not None:
                _lately[cell_id] = found, time.monotonic() + outages.flaps_within()
            outages.close_outage(cell_id, time.time())
            _changed.notify_all()
        if found is not None:
            if _should_log(found.times):
                logger.info("cell.up", cell=cell_id, seconds=round(time.time() - found.since, 1), times=found.times)
            for tell in _then:
                tell()


def when_up(tell: Callable[[], None]) -> None:
    """Register a callback for each cell that is back. It must be quick; the thread that saw the cell calls it."""
    _then.append(tell)


def set_probe(look: Callable[[Collection[str]], Mapping[str, str]]) -> None:
    """Set the probe function: it takes cell ids and returns the reason by cell that is still down."""
    global _look  # one probe function per process
    _look = look


def _next(found: Outage) -> Outage:
    interval = float(settings.CELL_RETRY_INTERVAL)
    pause = min(interval, interval * FIRST_PAUSE * 2**found.looks)
    return replace(found, looks=found.looks + 1, next_look=time.monotonic() + pause)


def _start() -> None:
    """Start the thread in this process: a thread does not survive a fork."""
    global _thread
    if _look is not None and (_thread is None or not _thread.is_alive()):
        _thread = threading.Thread(target=_watch, name="cell-breaker", daemon=True)
        _thread.start()


def _watch() -> None:
    """Probe the cells that are due and write outages; end when no cell is down or damped, and all is written."""
    global _thread
    write_again = 0.0  # monotonic
    while True:
        with _changed:
            now = time.monotonic()
            _reset_flaps(now)
            due = [cell_id for cell_id, found in _down.items() if found.next_look <= now]
            is_written = not outages.has_news()
            if not (_down or _lately) and is_written:
                _thread = None
                return
            if not due and (is_written or now < write_again):
                times = [found.next_look for found in _down.values()] + [until for _, until in _lately.values()]
                times += [] if is_written else [write_again]
                _changed.wait(max(0.01, min(times) - now))
                continue
        if due:
            _look_at(due)
        if not _write():
            write_again = time.monotonic() + float(settings.CELL_RETRY_INTERVAL)


def _reset_flaps(now: float) -> None:
    for cell_id, (found, until) in list(_lately.items()):
        if until <= now:
            del _lately[cell_id]
            if found.times > 1:
                logger.info("cell.stable", cell=cell_id, times=found.times)


def _look_at(due: Collection[str]) -> None:
    try:
        wrong = _look(due) if _look is not None else {}
    except Exception as error:  # e.g. the global database is down: the cells keep their state
        logger.warning("cell.probe_failed", error=repr(error))
        wrong = {cell_id: known_down(cell_id) for cell_id in due}
    for cell_id in due:
        _looked(cell_id, wrong.get(cell_id, ""))


def _write() -> bool:
    try:
        outages.write()
    except Exception as error:  # as above; probing goes on
        logger.warning("cell.outage_record_failed", error=repr(error))
        return False
    return True


def _looked(cell_id: str, wrong: str) -> None:
    if not wrong:
        record_recovery(cell_id)
        return
    with _changed:  # another thread may have found it up meanwhile
        found = _down.get(cell_id)
        if found is not None:
            if failure_reasons.kind(wrong) != failure_reasons.kind(found.reason):
                logger.warning("cell.still_down", cell=cell_id, reason=wrong)
            _down[cell_id] = _next(replace(found, reason=wrong))
