"""Events that were heard and changed nothing are no history: their rows are removed after a while."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from compute.external_events import names
from compute.models import InstanceAction

KEPT = timedelta(hours=1)  # longer than any client repeats a request
UNHEARD = timedelta(days=1)  # a host that was away so long need not hear of a port any more
BATCH = 1000


def forget() -> int:
    """In the targeted cell; how many there were."""
    now = timezone.now()
    old = Q(finished_at__lt=now - KEPT) | Q(started_at__lt=now - UNHEARD)
    found = InstanceAction.objects.filter(old, key=names.HEAR).order_by("pk").values_list("pk", flat=True)[:BATCH]
    InstanceAction.objects.filter(pk__in=list(found)).delete()
    return len(found)
