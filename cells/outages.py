"""Records of cell outages as each process saw them, in the global database; the breakers' threads write them.

A request only notes an outage in memory. What cannot be written now is written later. An open record of a dead process
does not count as a current outage, because nothing confirms it any more.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, connections
from django.db.models import Count, Min
from django.utils import timezone

from cells.models import CellOutage
from cells.query_deadline import cut_after

CONFIRMED_WITHIN = 3.0  # CELL_RETRY_INTERVALs; each probe confirms an open record
FLAPS_WITHIN = 12.0  # CELL_RETRY_INTERVALs after a recovery in which the next failure is flapping
MOST = 500  # records that wait to be written
KEPT = timedelta(days=1)
HOUR = timedelta(hours=1)
_lock = threading.Lock()
_open: dict[str, CellOutage] = {}  # by cell: open record of this process
_ended: dict[str, CellOutage] = {}  # by cell: last ended record of this process
_news: deque[CellOutage] = deque(maxlen=MOST)


@dataclass(slots=True)
class Incident:
    """A period in which a cell was down or flapped. Overlapping records of several processes are one incident."""

    began_at: datetime
    ended_at: datetime  # the current time while it is open
    is_open: bool
    is_sure: bool  # else the processes that saw it stopped confirming it at `ended_at`
    reasons: list[str] = field(default_factory=list)
    seen_by: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The duration, as far as it is known."""
        return (self.ended_at - self.began_at).total_seconds()


def open_outage(cell_id: str, reason: str, at: float) -> None:
    """Record that this process holds the cell to be down since `at` (Unix time)."""
    if settings.KEEP_OUTAGES:
        row = CellOutage(cell_id=cell_id, seen_by=_me(), reason=reason[:255], began_at=_time(at))
        with _lock:
            _open[cell_id] = row
            _news.append(row)


def reopen(cell_id: str, reason: str) -> None:
    """Reopen the cell's last record: a failure so soon is the same outage, however often the cell flaps."""
    with _lock:
        row = _ended.pop(cell_id, None)
        if row is not None:
            row.ended_at, row.confirmed_at = None, timezone.now()
            if reason not in row.reason:
                row.reason = f"{row.reason}; {reason}"[:255]
            _open[cell_id] = row
            _news.append(row)


def close_outage(cell_id: str, at: float) -> None:
    """Record that the cell answers this process again, since `at` (Unix time)."""
    with _lock:
        row = _open.pop(cell_id, None)
        if row is not None:
            row.ended_at = row.confirmed_at = _time(at)
            _ended[cell_id] = row
            _news.append(row)


def flaps_within() -> float:
    """Return the seconds after the end of an outage in which the next failure continues it."""
    return FLAPS_WITHIN * float(settings.CELL_RETRY_INTERVAL)


def has_news() -> bool:
    """Return whether records wait to be written."""
    return bool(_news)


def write() -> None:
    """Write new records and confirm the open ones. Not for requests. Raises what the global database raises."""
    if not _open and not _news:
        return
    try:
        with cut_after("default", settings.CELL_TIMEOUT):
            _confirm()
            _write_news()
    finally:
        connections["default"].close()  # the breaker's thread writes rarely


def of(cell_ids: Collection[str], lately: timedelta = HOUR) -> dict[str, list[Incident]]:
    """Return incidents by cell, newest first: all records of any process, and this one's unwritten ones. One query."""
    since = timezone.now() - lately
    with _lock:
        ours = list({id(row): row for row in (*_open.values(), *_news)}.values())
    known = [row.pk for row in ours if row.pk is not None]
    written = CellOutage.objects.filter(cell__in=cell_ids, confirmed_at__gte=since).exclude(pk__in=known)
    rows = [*written, *ours]
    return {cell_id: _merged(row for row in rows if row.cell_id == cell_id) for cell_id in cell_ids}


def open_counts() -> dict[str, tuple[int, datetime]]:
    """Return by cell how many processes hold it to be down, and since when the first of them does. One query."""
    fresh = timezone.now() - timedelta(seconds=_confirmed_within())
    rows = CellOutage.objects.filter(ended_at=None, confirmed_at__gte=fresh).values_list("cell")
    found = rows.annotate(count=Count("pk"), since=Min("began_at")).order_by()
    return {cell_id: (count, since) for cell_id, count, since in found}


def _confirmed_within() -> float:
    """Return the seconds after which an open record that is not confirmed does not count: its process has died."""
    return CONFIRMED_WITHIN * float(settings.CELL_RETRY_INTERVAL) + float(settings.CELL_TIMEOUT)


def _confirm() -> None:
    with _lock:
        rows = [row for row in _open.values() if row.pk is not None]
    if rows:
        now = timezone.now()
        CellOutage.objects.filter(pk__in=[row.pk for row in rows], ended_at=None).update(confirmed_at=now)
        for row in rows:
            row.confirmed_at = now


def _write_news() -> None:
    if not _news:
        return
    while _news:
        with suppress(IntegrityError):  # the cell was deleted
            _news[0].save()
        _news.popleft()
    CellOutage.objects.filter(confirmed_at__lt=timezone.now() - KEPT).delete()


def _merged(rows: Iterable[CellOutage]) -> list[Incident]:
    now, patience = timezone.now(), timedelta(seconds=_confirmed_within())
    gap = max(patience, timedelta(seconds=flaps_within()))
    found: list[Incident] = []
    for row in sorted(rows, key=lambda row: row.began_at):
        one = _incident(row, now, patience)
        last = found[-1] if found else None
        if last is not None and one.began_at <= last.ended_at + gap:
            _join(last, one)
        else:
            found.append(one)
    return found[::-1]


def _incident(row: CellOutage, now: datetime, patience: timedelta) -> Incident:
    is_open = row.ended_at is None and row.confirmed_at >= now - patience
    ended_at = row.ended_at or (now if is_open else row.confirmed_at)
    return Incident(row.began_at, ended_at, is_open, is_open or row.ended_at is not None, [row.reason], [row.seen_by])


def _join(first: Incident, more: Incident) -> None:
    """Add `more`, which began while `first` lasted or soon after."""
    if more.ended_at >= first.ended_at:
        first.ended_at, first.is_sure = more.ended_at, more.is_sure
    first.is_open |= more.is_open
    first.reasons += [reason for reason in more.reasons if reason not in first.reasons]
    first.seen_by += [name for name in more.seen_by if name not in first.seen_by]


def _me() -> str:
    return f"{settings.ROLE} on {socket.gethostname()}, pid {os.getpid()}"


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
