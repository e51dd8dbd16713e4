"""Remove the journal rows of external events that changed nothing: they are no history. In small batches."""

from __future__ import annotations

import time
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from cells.context import current_alias
from compute.actions.external_event import ExternalEvent
from compute.models import InstanceAction

KEPT = timedelta(hours=1)  # longer than any client repeats a request
UNHANDLED_FOR = timedelta(days=1)  # a host that was away for so long no longer needs the event
BATCH = 1000  # rows per transaction
EVERY = 15.0  # seconds between two rounds
SECONDS = 3.0  # after which a round begins no batch: the relay runs in the same thread


def purge() -> int:
    """Remove old event rows of the targeted cell; return how many. Several conductors may run it at once."""
    now, end = timezone.now(), time.monotonic() + SECONDS
    events = InstanceAction.objects.filter(key=ExternalEvent.__name__)
    # Each query is ordered as an index of its own: `external_events`, `open_actions`.
    heard = events.filter(finished_at__lt=now - KEPT).order_by("finished_at")
    unhandled = events.filter(finished_at__isnull=True, started_at__lt=now - UNHANDLED_FOR).order_by("started_at")
    return _remove(heard, end) + _remove(unhandled, end)


def _remove(events: QuerySet[InstanceAction], end: float) -> int:
    """Delete batch after batch until none is left or the round's time is over."""
    removed = 0
    while True:
        with transaction.atomic(using=current_alias()):
            rows = events.select_for_update(skip_locked=True, of=("self",)).values_list("pk", flat=True)[:BATCH]
            batch = list(rows)
            InstanceAction.objects.filter(pk__in=batch).delete()
        removed += len(batch)
        if len(batch) < BATCH or time.monotonic() >= end:
            return removed
