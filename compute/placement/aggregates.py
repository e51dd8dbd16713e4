"""Host aggregates and availability zones, for the scheduler and for the API.

The zone of a host is computed when it is asked for: that of an aggregate it is in, else the one of its own settings. So
no copy of it can be stale, and nothing is written into a cell that may be down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from compute.models import AggregateHost, Service

ZONE = "availability_zone"
ByHost = Mapping[str, Sequence[Mapping[str, Any]]]


def by_host(*hosts: str) -> ByHost:
    """Return the metadata of the aggregates of each host (without arguments: of all hosts); one query."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    rows = AggregateHost.objects.order_by("aggregate_id")
    for host, metadata in (rows.filter(host__in=hosts) if hosts else rows).values_list("host", "aggregate__metadata"):
        found[host].append(metadata)
    return dict(found)


def zone_of(service: Service, known: ByHost) -> str:
    """Return the availability zone of a host; `known` as `by_host()` returns it."""
    zones = (metadata[ZONE] for metadata in known.get(service.host, ()) if metadata.get(ZONE))
    return str(next(zones, service.availability_zone))
