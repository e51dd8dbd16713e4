"""The clock of a database, for leases and heartbeats: processes on many machines write and compare one clock.

SQLite has none of its own, but then all its processes are on one machine and have that one's.

A clock that was set wrong for a while leaves times of the future. No time on record may lie further ahead than the
longest wait anybody asks for: one that does is over.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connections
from django.db.models import Q
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

SLACK = 5.0  # seconds a time may lie ahead beyond the longest wait: a clock that is set right moves a little
# SQLite's clock has milliseconds and ours microseconds: what is due in this millisecond is due
RESOLUTION = 0.001


def now(seconds: float = 0.0) -> Combinable:
    """The database's time when the statement runs, and so many seconds later: for a filter or an UPDATE."""
    return Now() + timedelta(seconds=seconds) if seconds else Now()


def read(alias: str) -> datetime:
    """The time a database has now."""
    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute("SELECT statement_timestamp()")
            return cursor.fetchone()[0]
        cursor.execute("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")
        return datetime.fromisoformat(cursor.fetchone()[0]).replace(tzinfo=UTC)


def is_over(field: str, longest: float) -> Q:
    """Whether a wait has ended: it was none, its end has come, or lies further ahead than `longest` seconds."""
    past = Q(**{f"{field}__lte": now(RESOLUTION)})
    return Q(**{f"{field}__isnull": True}) | past | Q(**{f"{field}__gt": now(longest + SLACK)})


def is_recent(field: str, seconds: float) -> Q:
    """Whether a time lies at most so many seconds back, or ahead."""
    return Q(**{f"{field}__gt": now(-seconds), f"{field}__lt": now(seconds)})
