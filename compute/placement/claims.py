"""Allocations on compute nodes, claimed and released by one conditional UPDATE each. In the targeted cell."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Case, F, Value, When

from cells.context import current_alias
from compute.models import Allocation, ComputeNode
from compute.placement import inventory, server_groups
from compute.placement.server_groups import Group


def claim(
    server_id: str, node: ComputeNode, vcpus: int, memory_mb: int, disk_gb: int, group: Group | None = None
) -> bool:
    """Claim room on a node for a server; False when there is too little, or its server group forbids the host.

    A whole node (bare metal) is claimed as a whole by one server, whatever the server's size. Run it in the caller's
    transaction. Idempotent: an allocation of the same size is success. An allocation of another size is replaced: an
    older move of the server left it, e.g. a resize that an evacuation ended.
    """
    size = (vcpus, memory_mb, disk_gb)
    here = Allocation.objects.filter(server_id=server_id, node=node)
    held = here.values_list("vcpus", "memory_mb", "disk_gb").first()
    if held is not None and (node.is_whole or held == size):
        return True
    if held is None and group is None:
        return _take(server_id, node, *size)
    alias = current_alias()
    with transaction.atomic(using=alias):
        if held is not None:
            release(server_id, node.hypervisor_hostname)
        taken = _take(server_id, node, *size) and (group is None or server_groups.admits(group, server_id, node))
        transaction.set_rollback(not taken, using=alias)
    return taken


def _take(server_id: str, node: ComputeNode, vcpus: int, memory_mb: int, disk_gb: int) -> bool:
    """Claim by one UPDATE, which also locks the node's row until the transaction ends."""
    fits = ComputeNode.objects.filter(pk=node.pk, is_whole=node.is_whole, out_of_use="")
    if node.is_whole:
        # at least 1, also for a machine of unknown size: `vcpus_used` is what keeps the next server out
        vcpus, memory_mb, disk_gb = max(1, node.vcpus), node.memory_mb, node.disk_gb
        fits = fits.filter(vcpus_used=0)
    else:
        fits = fits.filter(
            vcpus_used__lte=F("vcpus") * F("cpu_ratio") - vcpus,
            memory_mb_used__lte=F("memory_mb") * F("ram_ratio") - memory_mb,
            disk_gb_used__lte=F("disk_gb") * F("disk_ratio") - disk_gb,
        )
    taken = fits.update(
        vcpus_used=F("vcpus_used") + vcpus,
        memory_mb_used=F("memory_mb_used") + memory_mb,
        disk_gb_used=F("disk_gb_used") + disk_gb,
    )
    if not taken:
        return False
    Allocation.objects.create(
        server_id=server_id, node=node, vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb
    )
    return True


def release(server_id: str, node_name: str | None = None) -> None:
    """Release a server's allocations, on one node or on all. Idempotent.

    A whole node stays out of use until its host has reported it again: it may have to be cleaned first.
    """
    held = Allocation.objects.filter(server_id=server_id)
    if node_name is not None:
        held = held.filter(node__hypervisor_hostname=node_name)
    with transaction.atomic(using=current_alias()):
        for allocation in held:
            # Only the transaction that deletes the row gives the room back, so it is given back once.
            if Allocation.objects.filter(pk=allocation.pk).delete()[0]:
                ComputeNode.objects.filter(pk=allocation.node_id).update(
                    vcpus_used=F("vcpus_used") - allocation.vcpus,
                    memory_mb_used=F("memory_mb_used") - allocation.memory_mb,
                    disk_gb_used=F("disk_gb_used") - allocation.disk_gb,
                    out_of_use=Case(
                        When(is_whole=True, out_of_use="", then=Value(inventory.LEFT)), default=F("out_of_use")
                    ),
                )
