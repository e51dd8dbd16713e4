"""The clock of a database, for leases and heartbeats: processes on many machines compare times of one clock.

SQLite uses the machine's clock, and all its processes are on one machine. A clock that was wrong for a while leaves
times in the future: a wait that ends later than the longest possible wait counts as over.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connections
from django.db.models import Q
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

SLACK = 5.0  # seconds of tolerance beyond the longest wait: a clock that is corrected moves a little
# SQLite's clock has milliseconds, Python's has microseconds: a time within the current millisecond is past
RESOLUTION = 0.001


def now(seconds: float = 0.0) -> Combinable:
    """Return the database's time when the statement runs, plus `seconds`; for a filter or an UPDATE."""
    return Now() + timedelta(seconds=seconds) if seconds else Now()


def read(alias: str) -> datetime:
    """Return the current time of a database."""
    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute("SELECT statement_timestamp()")
            return cursor.fetchone()[0]
        cursor.execute("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")
        return datetime.fromisoformat(cursor.fetchone()[0]).replace(tzinfo=UTC)


def is_over(field: str, longest: float) -> Q:
    """Return the condition "the wait is over": null, in the past, or more than `longest` seconds (+ SLACK) ahead."""
    past = Q(**{f"{field}__lte": now(RESOLUTION)})
    return Q(**{f"{field}__isnull": True}) | past | Q(**{f"{field}__gt": now(longest + SLACK)})


def is_recent(field: str, seconds: float) -> Q:
    """Return the condition "at most `seconds` in the past or in the future"."""
    return Q(**{f"{field}__gt": now(-seconds), f"{field}__lt": now(seconds)})
