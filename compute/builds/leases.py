"""Leases of build requests: at most one scheduler places a server at a time; what is left free is sent again.

A lease lasts `BuildRequest.LEASE` seconds on the global database's clock. Its holder's name is new each time.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.expressions import Combinable

from cells import circuit_breaker, database_clock
from cells.models import BuildRequest, Cell, InstanceMapping, RequestSpec
from cloud import metrics
from compute.operations import dispatch

LEASE = timedelta(seconds=BuildRequest.LEASE)
BATCH = 500


class LeaseLost(RuntimeError):
    """Another scheduler holds the request now; this one wrote nothing."""


def take(server_id: str) -> BuildRequest | None:
    """Take the lease. The holder's name is new every time, so two holders cannot be confused."""
    holder = f"{settings.HOST}/{uuid4()}"
    free = BuildRequest.objects.filter(BuildRequest.is_free(), pk=server_id)
    won = free.update(lease_holder=holder, lease_until=_end_of_lease())
    return BuildRequest.objects.filter(pk=server_id, lease_holder=holder).first() if won else None


def renew(request: BuildRequest) -> None:
    """Renew the lease as the last write before a commit: a scheduler that lost it must not write a second server."""
    mine = BuildRequest.objects.filter(pk=request.pk, lease_holder=request.lease_holder)
    if not mine.update(lease_until=_end_of_lease()):
        raise LeaseLost(request.server_id)


def release(request: BuildRequest) -> None:
    """Give the lease back; the request is sent again once the cells it waits for are not known to be down."""
    mine = BuildRequest.objects.filter(pk=request.pk, lease_holder=request.lease_holder)
    mine.update(lease_holder="", lease_until=None, sent_at=None, sends=0)


def _end_of_lease() -> Combinable:
    return database_clock.now(BuildRequest.LEASE)


def free_leases_of(scheduler: str) -> int:
    """Free the leases of a scheduler's earlier incarnation, instead of waiting for their end; return how many.

    If that incarnation still runs, it finds its lease lost and writes nothing.
    """
    held = BuildRequest.objects.filter(lease_holder__startswith=f"{scheduler}/", lease_until__isnull=False)
    return held.update(lease_holder="", lease_until=None, sent_at=None)


def relay() -> int:
    """Send the build requests again whose message or scheduler was lost, or whose cell is back; return how many.

    The round ends when the broker does not answer. A request that was not sent stays due.
    """
    now = database_clock.read("default")
    late = _without_down_cells(BuildRequest.objects.filter(BuildRequest.is_free() & dispatch.is_due_again(now)))
    sent = dispatch.send_requests(list(late.order_by("created_at").values_list("server_id", flat=True)[:BATCH]))
    if sent:
        late.filter(pk__in=sent).update(sent_at=now, sends=F("sends") + 1)
        metrics.RESENT.inc(len(sent))
    return len(sent)


def _without_down_cells(requests: QuerySet[BuildRequest]) -> QuerySet[BuildRequest]:
    """Exclude requests whose cells are known to be down here: there may be many."""
    cells = list(Cell.objects.all())
    down = {cell.id for cell in cells if circuit_breaker.known_down(cell.id)}
    if not down:
        return requests
    there = InstanceMapping.objects.filter(cell__in=down)
    requests = requests.exclude(server_id__in=there.values("server_id"))
    if all(cell.id in down for cell in cells if not cell.is_cell0 and not cell.disabled):
        nowhere = InstanceMapping.objects.filter(cell__isnull=True)
        requests = requests.exclude(server_id__in=nowhere.values("server_id"), delete_requested=False)
    return requests


def delete_requests_of(server_id: str) -> None:
    """Delete the request, and mapping and spec too if the server is in no cell (else they stay as history)."""
    with transaction.atomic(using="default"):
        BuildRequest.objects.filter(pk=server_id).delete()
        if InstanceMapping.objects.filter(pk=server_id, cell__isnull=True).delete()[0]:
            RequestSpec.objects.filter(pk=server_id).delete()
