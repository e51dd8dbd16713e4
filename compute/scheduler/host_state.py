"""The state of hosts for the scheduler, one record per compute node: a host may have many nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from cells.compiled_query import CompiledQuery
from cells.context import current_alias
from compute.models import Allocation, ComputeNode, InstanceAction, Step
from compute.models.host import COMPUTE, EVERY_NODE, EVERY_SERVICE
from compute.placement import aggregates
from compute.placement.aggregates import ByHost
from compute.scheduler.requirements import Requirements


@dataclass(frozen=True, slots=True)
class HostState:
    """A node and its host as they were when read. Only the claim decides whether there still is room."""

    host: str
    node: ComputeNode
    zone: str
    up: bool
    enabled: bool
    draining: bool = False
    version: int = 1  # of its service
    cell_id: str = ""
    aggregates: Sequence[Mapping[str, Any]] = ()  # the metadata of each aggregate of the host
    neighbours: frozenset[str] = frozenset()  # of `Requirements.neighbours`, those with an allocation here
    operations: int = 0  # open steps of the host

    @property
    def names(self) -> frozenset[str]:
        """The names by which the node can be excluded."""
        return frozenset({self.host, self.node.hypervisor_hostname})

    @property
    def is_taken(self) -> bool:
        """Whether it is a bare-metal node that a server has."""
        return self.node.is_whole and self.node.vcpus_used > 0

    @property
    def free_cpus(self) -> float:
        """CPUs that can still be claimed, with the overcommit ratio."""
        return self.node.vcpus * self.node.cpu_ratio - self.node.vcpus_used

    @property
    def free_memory(self) -> float:
        """MiB that can still be claimed, with the overcommit ratio."""
        return self.node.memory_mb * self.node.ram_ratio - self.node.memory_mb_used

    @property
    def free_disk(self) -> float:
        """GiB that can still be claimed, with the overcommit ratio."""
        return self.node.disk_gb * self.node.disk_ratio - self.node.disk_gb_used


def _operations() -> QuerySet[Step, Any]:
    """Open steps by host, found through the open actions: those are few and have their own index."""
    begun = InstanceAction.objects.filter(finished_at__isnull=True)
    is_open = (Step.State.QUEUED, Step.State.RUNNING, Step.State.WAITING)
    going_on = Step.objects.filter(action__in=begun, state__in=is_open)
    return going_on.exclude(host="").values_list("host").annotate(Count("pk")).order_by()


_OPERATIONS = CompiledQuery(_operations)


def read(cell_id: str = "", wanted: Requirements | None = None, known: ByHost | None = None) -> list[HostState]:
    """Return every node of the targeted cell whose host has a service, in at most five queries.

    `wanted`: fill in `neighbours` for these requirements; `known`: the aggregates, if they are read already.
    """
    known = aggregates.by_host() if known is None else known
    alias = current_alias()
    services = {service.host: service for service in EVERY_SERVICE.read(alias) if service.binary == COMPUTE}
    operations = dict(_OPERATIONS.rows(alias))
    there = _where(wanted.neighbours) if wanted is not None and wanted.neighbours else {}
    return [
        HostState(
            node.host, node, aggregates.zone_of(service, known),
            up=service.last_seen_up is not None and service.is_up, enabled=not service.disabled,
            draining=bool(service.drain_state), version=service.version, cell_id=cell_id,
            aggregates=known.get(node.host, ()), neighbours=frozenset(there.get(node.pk, ())),
            operations=operations.get(node.host, 0),
        )
        for node in EVERY_NODE.read(alias)
        if (service := services.get(node.host)) is not None
    ]  # fmt: skip


def _where(server_ids: frozenset[str]) -> dict[int, set[str]]:
    """The given servers with an allocation, by node id; a server that moves is on both nodes."""
    found: dict[int, set[str]] = defaultdict(set)
    held = Allocation.objects.filter(server_id__in=server_ids)
    for node_id, server_id in held.values_list("node_id", "server_id"):
        found[node_id].add(server_id)
    return found
