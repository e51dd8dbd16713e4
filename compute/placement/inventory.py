"""The compute nodes of a host: the inventory that its driver reports. In the targeted cell.

One host may report a thousand nodes (bare metal).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from cells.context import current_alias
from cloud import log
from compute.models import ComputeNode, Instance
from compute.models.instance import new_uuid
from compute.virt.base import HostFacts

logger = log.get(__name__)
GONE = "gone"  # no longer reported by its host, but a server still has an allocation
LEFT = "its last server has just left"
FACTS = (
    "host", "hypervisor_type", "hypervisor_version", "host_ip", "cpu_info", "started_at", "vcpus", "memory_mb",
    "disk_gb", "cpu_ratio", "ram_ratio", "disk_ratio", "is_whole", "resource_class", "out_of_use", "updated_at",
)  # fmt: skip
COMPARED = tuple(name for name in FACTS if name not in ("started_at", "updated_at"))


def record(host: str, reported: Sequence[HostFacts]) -> None:
    """Write the reported nodes that differ from the recorded ones, in a constant number of queries.

    Allocations are not touched. A node that is no longer reported is deleted, or stays out of use while a server has an
    allocation on it.
    """
    now = timezone.now()
    facts = {one.hypervisor_hostname: one for one in reported}
    rows_known = ComputeNode.objects.filter(Q(host=host) | Q(hypervisor_hostname__in=list(facts)))
    known = {node.hypervisor_hostname: node for node in rows_known}
    kept = _kept_elsewhere(host, list(known.values()))
    asked = [_row(host, one, now) for name, one in sorted(facts.items()) if name not in kept]
    new = [row for row in asked if _differs(row, known.get(row.hypervisor_hostname))]
    if new:
        ComputeNode.objects.bulk_create(
            new, update_conflicts=True, unique_fields=("hypervisor_hostname",), update_fields=FACTS
        )
    missing = [node.pk for name, node in known.items() if node.host == host and name not in facts]
    with transaction.atomic(using=current_alias()):
        lock(host)
        ComputeNode.objects.filter(host=host).update(updated_at=now)
        if missing:
            _delete_nodes(missing)


def lock(host: str) -> None:
    """Lock the host's nodes until the transaction ends, always ordered by name: any other order could deadlock."""
    rows = ComputeNode.objects.select_for_update(of=("self",)).filter(host=host).order_by("hypervisor_hostname")
    list(rows.values_list("pk"))


def failure_scope(instance: Instance) -> str:
    """Return what a failed build is attributed to: the node if the host has several or whole ones, else the host."""
    nodes = dict(ComputeNode.objects.filter(host=instance.host).values_list("hypervisor_hostname", "is_whole"))
    return instance.node if len(nodes) > 1 or nodes.get(instance.node) else instance.host


def _kept_elsewhere(host: str, known: list[ComputeNode]) -> set[str]:
    """Whole nodes of other hosts that servers hold: they stay with those hosts."""
    theirs = [node for node in known if node.host != host and node.is_whole]
    held = ComputeNode.objects.filter(pk__in=[node.pk for node in theirs], allocations__isnull=False) if theirs else ()
    kept = {node.hypervisor_hostname: node.host for node in held}
    for name, other in kept.items():
        logger.warning("inventory.node_of_another_host", node=name, host=other)
    return set(kept)


def _row(host: str, facts: HostFacts, now: datetime) -> ComputeNode:
    booted = None if facts.is_whole else now - timedelta(seconds=facts.uptime_seconds)
    return ComputeNode(
        uuid=_uuid(facts), host=host, hypervisor_hostname=facts.hypervisor_hostname,
        hypervisor_type=facts.hypervisor_type, hypervisor_version=facts.hypervisor_version, host_ip=facts.host_ip,
        cpu_info=dict(facts.cpu_info), started_at=booted, vcpus=facts.vcpus, memory_mb=facts.memory_mb,
        disk_gb=facts.disk_gb, is_whole=facts.is_whole, resource_class=facts.resource_class,
        out_of_use=facts.out_of_use[:255], updated_at=now, **_ratios(facts),
    )  # fmt: skip


def _uuid(facts: HostFacts) -> str:
    """A bare-metal node keeps the uuid by which Ironic knows it, as in Nova."""
    try:
        return str(UUID(facts.hypervisor_hostname)) if facts.is_whole else new_uuid()
    except ValueError:
        return new_uuid()


def _ratios(facts: HostFacts) -> dict[str, float]:
    """A whole node is never overcommitted."""
    if facts.is_whole:
        return {"cpu_ratio": 1.0, "ram_ratio": 1.0, "disk_ratio": 1.0}
    return {"cpu_ratio": settings.CPU_RATIO, "ram_ratio": settings.RAM_RATIO, "disk_ratio": settings.DISK_RATIO}


def _differs(row: ComputeNode, known: ComputeNode | None) -> bool:
    """Whether the row differs; boot times may differ by 2 s, as each report computes them from the uptime."""
    if known is None or any(getattr(row, name) != getattr(known, name) for name in COMPARED):
        return True
    if row.started_at is None or known.started_at is None:
        return row.started_at is not known.started_at
    return abs(row.started_at - known.started_at) > timedelta(seconds=2)


def _delete_nodes(missing: list[int]) -> None:
    """Take the nodes out of use, so that no new claim succeeds; then delete those without allocations."""
    gone: Any = ComputeNode.objects.filter(pk__in=missing)
    gone.update(out_of_use=GONE)
    deleted, _ = gone.filter(allocations__isnull=True).delete()
    logger.info("inventory.nodes_missing", deleted=deleted, held=len(missing) - deleted)
