"""The hosts of a cell as the scheduler sees them, or rather their nodes: a host may serve many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from compute.models import Allocation, ComputeNode, InstanceAction, Service, Step
from compute.models.host import COMPUTE
from compute.placement import aggregates
from compute.placement.aggregates import ByHost
from compute.scheduler.requirements import Requirements


@dataclass(frozen=True, slots=True)
class HostState:
    """A node and its host as they were a moment ago. The claim decides whether they still are."""

    host: str
    node: ComputeNode
    zone: str
    up: bool
    enabled: bool
    draining: bool = False
    cell_id: str = ""
    aggregates: Sequence[Mapping[str, Any]] = ()  # the metadata of each it is in
    neighbours: frozenset[str] = frozenset()  # those of the wanted server that hold room here
    operations: int = 0  # steps that run here, or are about to

    @property
    def names(self) -> frozenset[str]:
        """By either of these it is avoided."""
        return frozenset({self.host, self.node.hypervisor_hostname})

    @property
    def is_taken(self) -> bool:
        """Whether it is a machine that is somebody's."""
        return self.node.is_whole and self.node.vcpus_used > 0

    @property
    def free_cpus(self) -> float:
        """CPUs that may still be sold."""
        return self.node.vcpus * self.node.cpu_ratio - self.node.vcpus_used

    @property
    def free_memory(self) -> float:
        """MiB that may still be sold."""
        return self.node.memory_mb * self.node.ram_ratio - self.node.memory_mb_used

    @property
    def free_disk(self) -> float:
        """GiB that may still be sold."""
        return self.node.disk_gb * self.node.disk_ratio - self.node.disk_gb_used


def read(cell_id: str = "", wanted: Requirements | None = None, known: ByHost | None = None) -> list[HostState]:
    """Every node of the targeted cell, in three queries, four when it matters who is there.

    `known`: the aggregates, when they are read already.
    """
    known = aggregates.by_host() if known is None else known
    services = {s.host: s for s in Service.objects.filter(binary=COMPUTE)}
    operations = _operations()
    there = _where(wanted.neighbours) if wanted is not None and wanted.neighbours else {}
    return [
        HostState(
            node.host, node, aggregates.zone_of(service, known),
            up=service.last_seen_up is not None and service.is_up, enabled=not service.disabled,
            draining=bool(service.drain_state), cell_id=cell_id, aggregates=known.get(node.host, ()),
            neighbours=frozenset(there.get(node.pk, ())), operations=operations.get(node.host, 0),
        )
        for node in ComputeNode.objects.all()
        if (service := services.get(node.host)) is not None
    ]  # fmt: skip


def _operations() -> dict[str, int]:
    """By way of the actions that are open, which are few and have an index of their own."""
    begun = InstanceAction.objects.filter(finished_at__isnull=True)
    is_open = (Step.State.QUEUED, Step.State.RUNNING, Step.State.WAITING)
    going_on = Step.objects.filter(action__in=begun, state__in=is_open)
    return dict(going_on.exclude(host="").values_list("host").annotate(Count("pk")).order_by())


def _where(server_ids: frozenset[str]) -> dict[int, set[str]]:
    """Which of these servers hold room on which node; one that moves does so on both of its hosts."""
    found: dict[int, set[str]] = defaultdict(set)
    held = Allocation.objects.filter(server_id__in=server_ids)
    for node_id, server_id in held.values_list("node_id", "server_id"):
        found[node_id].add(server_id)
    return found
