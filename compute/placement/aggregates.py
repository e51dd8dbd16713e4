"""Which hosts are grouped how: for the scheduler, and for whoever shows a zone.

A host's zone is worked out when it is asked for: that of an aggregate it is in, else the one its own settings name.
So there is no copy of it to go stale, and nothing to write into a cell that is down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from compute.models import AggregateHost, Service

ZONE = "availability_zone"
ByHost = Mapping[str, Sequence[Mapping[str, Any]]]


def by_host(*hosts: str) -> ByHost:
    """The metadata of the aggregates each host is in (of all hosts, when none is named); one query."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    rows = AggregateHost.objects.order_by("aggregate_id")
    for host, metadata in (rows.filter(host__in=hosts) if hosts else rows).values_list("host", "aggregate__metadata"):
        found[host].append(metadata)
    return dict(found)


def zone_of(service: Service, known: ByHost) -> str:
    """The zone a host is in."""
    zones = (metadata[ZONE] for metadata in known.get(service.host, ()) if metadata.get(ZONE))
    return str(next(zones, service.availability_zone))
