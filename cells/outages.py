"""When each cell was down, as every process saw it: kept on the global side by the breakers' own threads.

A request only notes it in memory. What cannot be written now is written later, and what a process that died left open
is not taken for an outage that goes on: it is not confirmed any more.
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

from cells.breaker_sharing import old_after
from cells.models import CellOutage
from cells.query_deadline import cut_after

FLAPS_WITHIN = 12.0  # CELL_RETRY_INTERVALs: a cell that goes away again so soon after it was back, flaps
MOST = 500  # that have ended and wait to be written
KEPT = timedelta(days=1)
HOUR = timedelta(hours=1)
_lock = threading.Lock()
_open: dict[str, CellOutage] = {}  # by cell: of this process
_ended: dict[str, CellOutage] = {}  # by cell: the last one of this process
_news: deque[CellOutage] = deque(maxlen=MOST)


@dataclass(slots=True)
class Incident:
    """A time in which a cell was down, or flapped: whatever several processes saw at once is one."""

    began_at: datetime
    ended_at: datetime  # now, while it is open
    is_open: bool
    is_sure: bool  # else whoever saw it has said nothing more since `ended_at`
    reasons: list[str] = field(default_factory=list)
    seen_by: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it lasted, as far as anybody knows."""
        return (self.ended_at - self.began_at).total_seconds()


def began(cell_id: str, reason: str, at: float) -> None:
    """This process holds the cell to be down since `at` (seconds since 1970)."""
    if settings.KEEP_OUTAGES:
        row = CellOutage(cell_id=cell_id, seen_by=_me(), reason=reason[:255], began_at=_time(at))
        with _lock:
            _open[cell_id] = row
            _news.append(row)


def again(cell_id: str, reason: str) -> None:
    """It is away again, so soon that this is the same outage: it has one record, however often the cell flaps."""
    with _lock:
        row = _ended.pop(cell_id, None)
        if row is not None:
            row.ended_at, row.confirmed_at = None, timezone.now()
            if reason not in row.reason:
                row.reason = f"{row.reason}; {reason}"[:255]
            _open[cell_id] = row
            _news.append(row)


def ended(cell_id: str, at: float) -> None:
    """It answers this process again."""
    with _lock:
        row = _open.pop(cell_id, None)
        if row is not None:
            row.ended_at = row.confirmed_at = _time(at)
            _ended[cell_id] = row
            _news.append(row)


def flaps_within() -> float:
    """Seconds after the end of an outage in which the next one is the same one."""
    return FLAPS_WITHIN * float(settings.CELL_RETRY_INTERVAL)


def has_news() -> bool:
    """Whether something waits to be written."""
    return bool(_news)


def write() -> None:
    """What is new, and that what is open still is. Not of a request. Raises what the global database raises."""
    if not _open and not _news:
        return
    try:
        with cut_after("default", settings.CELL_TIMEOUT):
            _confirm()
            _write_news()
    finally:
        connections["default"].close()  # the breaker's thread writes seldom


def of(cell_ids: Collection[str], lately: timedelta = HOUR) -> dict[str, list[Incident]]:
    """By cell, the newest first: what any process saw, this one's latest included. One query."""
    since = timezone.now() - lately
    with _lock:
        ours = list({id(row): row for row in (*_open.values(), *_news)}.values())
    known = [row.pk for row in ours if row.pk is not None]
    written = CellOutage.objects.filter(cell__in=cell_ids, confirmed_at__gte=since).exclude(pk__in=known)
    rows = [*written, *ours]
    return {cell_id: _merged(row for row in rows if row.cell_id == cell_id) for cell_id in cell_ids}


def open_now() -> dict[str, tuple[int, datetime]]:
    """How many processes hold each cell to be down, and since when the first of them does. One query."""
    fresh = timezone.now() - timedelta(seconds=old_after())
    rows = CellOutage.objects.filter(ended_at=None, confirmed_at__gte=fresh).values_list("cell")
    found = rows.annotate(count=Count("pk"), since=Min("began_at")).order_by()
    return {cell_id: (count, since) for cell_id, count, since in found}


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
        with suppress(IntegrityError):  # the cell is forgotten
            _news[0].save()
        _news.popleft()
    CellOutage.objects.filter(confirmed_at__lt=timezone.now() - KEPT).delete()


def _merged(rows: Iterable[CellOutage]) -> list[Incident]:
    now, patience = timezone.now(), timedelta(seconds=old_after())
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
    """`more` began while `first` lasted."""
    if more.ended_at >= first.ended_at:
        first.ended_at, first.is_sure = more.ended_at, more.is_sure
    first.is_open |= more.is_open
    first.reasons += [reason for reason in more.reasons if reason not in first.reasons]
    first.seen_by += [name for name in more.seen_by if name not in first.seen_by]


def _me() -> str:
    return f"{settings.ROLE} on {socket.gethostname()}, pid {os.getpid()}"


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
