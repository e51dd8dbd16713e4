"""Which cells do not answer: one breaker per cell and process, so that only the first request after a failure pays.

A cell that failed is DOWN at once for everybody, until a look of our own (never a request) finds it back. Looks
come one at a time, ever less often, at least once every CELL_RETRY_INTERVAL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from django.conf import settings

from cells import outages, rumours
from cloud import log

logger = log.get(__name__)
FIRST_PAUSE = 0.25  # of an interval, then twice as long each time, up to one interval
_changed = threading.Condition()


@dataclass(frozen=True, slots=True)
class Outage:
    """A cell that is held to be down."""

    reason: str
    since: float = field(default_factory=time.time)  # seconds since 1970
    looks: int = 0
    next_look: float = 0.0  # monotonic

    @property
    def seconds_until_look(self) -> float:
        """Until somebody looks whether it is back."""
        return max(0.0, self.next_look - time.monotonic())


_down: dict[str, Outage] = {}
_look: Callable[[Collection[str]], Mapping[str, str]] | None = None
_then: list[Callable[[], None]] = []  # what is told of cells that are back
_thread: threading.Thread | None = None


def known_down(cell_id: str) -> str:
    """Why the cell is held to be down, here or by another process of this machine; "" when it is up."""
    for heard, reason in rumours.news().items():
        if heard not in _down:
            _remember(heard, reason)
    found = _down.get(cell_id)
    return found.reason if found else ""


def outage(cell_id: str) -> Outage | None:
    """What is known of a cell that is down."""
    return _down.get(cell_id)


def seen_down(cell_id: str, reason: str) -> None:
    """Remember a failure, and begin to look for its end."""
    with _changed:
        _remember(cell_id, reason)
        rumours.tell(cell_id, reason)


def _remember(cell_id: str, reason: str) -> None:
    with _changed:
        before = _down.get(cell_id)
        if before is None:
            _down[cell_id] = found = _next(Outage(reason))
            outages.began(cell_id, reason, found.since)
            logger.warning("cell.down", cell=cell_id, reason=reason)
        else:
            _down[cell_id] = replace(before, reason=reason)
        _start()
        _changed.notify_all()


def seen_up(cell_id: str) -> None:
    """It answered."""
    if cell_id in _down:
        with _changed:
            rumours.take_back(cell_id)
            found = _down.pop(cell_id, None)
            outages.ended(cell_id, time.time())
            _changed.notify_all()
        if found is not None:
            logger.info("cell.up", cell=cell_id, seconds=round(time.time() - found.since, 1))
            for tell in _then:
                tell()


def when_up(tell: Callable[[], None]) -> None:
    """Call this, which must be quick, whenever a cell is back; from whichever thread saw it."""
    _then.append(tell)


def look_with(look: Callable[[Collection[str]], Mapping[str, str]]) -> None:
    """How to look at cells: what is still wrong with each of them, "" when nothing is."""
    global _look  # one way to look, for the whole process
    _look = look


def _next(found: Outage) -> Outage:
    interval = float(settings.CELL_RETRY_INTERVAL)
    pause = min(interval, interval * FIRST_PAUSE * 2**found.looks)
    return replace(found, looks=found.looks + 1, next_look=time.monotonic() + pause)


def _start() -> None:
    """In this process: a thread does not outlive a fork."""
    global _thread
    if _look is not None and (_thread is None or not _thread.is_alive()):
        _thread = threading.Thread(target=_watch, name="cell-breaker", daemon=True)
        _thread.start()


def _watch() -> None:
    """Look at those whose time has come, and keep a record; end when every cell is up and that is written."""
    global _thread
    write_again = 0.0  # monotonic
    while True:
        with _changed:
            now = time.monotonic()
            due = [cell_id for cell_id, found in _down.items() if found.next_look <= now]
            is_written = not outages.has_news()
            if not _down and is_written:
                _thread = None
                return
            if not due and (is_written or now < write_again):
                times = [found.next_look for found in _down.values()] + ([] if is_written else [write_again])
                _changed.wait(max(0.01, min(times) - now))
                continue
        if due:
            _look_at(due)
        if not _write():
            write_again = time.monotonic() + float(settings.CELL_RETRY_INTERVAL)


def _look_at(due: Collection[str]) -> None:
    try:
        wrong = _look(due) if _look is not None else {}
    except Exception as error:  # the global database is away, say: nothing new is known
        logger.warning("cell.look_failed", error=repr(error))
        wrong = {cell_id: known_down(cell_id) for cell_id in due}
    for cell_id in due:
        _looked(cell_id, wrong.get(cell_id, ""))


def _write() -> bool:
    try:
        outages.write()
    except Exception as error:  # as above; the looks go on
        logger.warning("cell.outages_not_written", error=repr(error))
        return False
    return True


def _looked(cell_id: str, wrong: str) -> None:
    if not wrong:
        seen_up(cell_id)
        return
    with _changed:  # and not told after somebody found it up
        found = _down.get(cell_id)
        if found is not None:
            _down[cell_id] = _next(replace(found, reason=wrong))
            rumours.tell(cell_id, wrong)
