"""Checks for a change of availability zone: no host may have servers then, or be in two zones at once.

The change is made first, inside the caller's transaction and under a lock on each host, and checked afterwards; an
exception rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cells import scatter
from cells.models import Cell, HostMapping
from cloud.errors import ApiError
from compute.errors import CellDown
from compute.models import Allocation, Instance, Service
from compute.placement import aggregates
from compute.placement.aggregates import ZONE, ByHost


@contextmanager
def checked(hosts: Sequence[str], doing: str, refused: type[ApiError]) -> Iterator[None]:
    """Check a change of aggregates made in the `with` block, inside a global transaction.

    Locks the host mappings. Raises `refused` with Nova's text, or CellDown.
    """
    list(HostMapping.objects.select_for_update(of=("self",)).filter(host__in=hosts).order_by("host"))
    before = aggregates.by_host(*hosts) if hosts else {}
    yield
    after = aggregates.by_host(*hosts) if hosts else {}
    changed = [host for host in hosts if _said(before, host) != _said(after, host)]
    for host in changed:
        zones = _said(after, host)
        if len(zones) > 1:
            raise refused(f"{doing} Reason: One or more hosts already in availability zone(s) {sorted(zones)}.")
    for cell in Cell.objects.filter(hosts__host__in=changed).distinct():
        mine = set(HostMapping.objects.filter(cell=cell, host__in=changed).values_list("host", flat=True))
        busy = scatter.ask_one(cell, lambda _, mine=mine: _busy(mine, before, after))  # type: ignore[misc]
        if isinstance(busy, scatter.CellFailure):
            raise CellDown(cell.name)
        if busy:
            raise refused(f"{doing} Reason: One or more hosts contain instances in this zone.")


def _said(known: ByHost, host: str) -> set[str]:
    """The zones that the aggregates of a host name."""
    return {metadata[ZONE] for metadata in known.get(host, ()) if metadata.get(ZONE)}


def _busy(hosts: set[str], before: ByHost, after: ByHost) -> bool:
    """Whether a host whose zone really changes has servers or allocations; in the targeted cell."""
    moving = {
        service.host for service in Service.objects.computes(host__in=hosts)
        if aggregates.zone_of(service, before) != aggregates.zone_of(service, after)
    }  # fmt: skip
    here = Instance.objects.living(host__in=moving)
    return here.exists() or Allocation.objects.filter(node__host__in=moving).exists()
