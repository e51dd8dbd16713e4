"""Remove members of server groups whose servers are deleted."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, OuterRef

from cells import batches
from cells.models import InstanceMapping
from compute.models import Instance, ServerGroupMember
from compute.placement import server_groups

BATCH = 500
_cursor = batches.BatchCursor()  # members of a down cell, or soft-deleted ones, may be many


def remove() -> int:
    """Check some members that are not counted any more; return how many were removed. Those of a down cell stay."""
    counted = InstanceMapping.objects.filter(server_groups.LIVING, pk=OuterRef("server_id"))
    members = ServerGroupMember.objects.filter(~Exists(counted)).values_list("pk", "server_id")
    servers = {server_id for _, server_id in _cursor.next(members, BATCH)}
    gone = servers.difference(InstanceMapping.objects.filter(pk__in=servers).values_list("pk", flat=True))
    for _, _, deleted in batches.ask_cells(batches.by_cell(servers), _deleted):
        gone |= deleted
    return ServerGroupMember.objects.filter(server_id__in=gone).delete()[0]


def _deleted(server_ids: Collection[str]) -> set[str]:
    return set(Instance.objects.filter(uuid__in=server_ids, deleted=True).values_list("uuid", flat=True))
