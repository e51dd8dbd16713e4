"""Remove members of server groups whose servers are deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from django.db.models import Exists, OuterRef

from cells import scatter
from cells.models import Cell, InstanceMapping
from compute.models import Instance, ServerGroupMember
from compute.placement import server_groups

BATCH = 500
_after = 0  # last row checked: members of a down cell, or soft-deleted ones, may be many


def remove() -> int:
    """Check some members that are not counted any more; return how many were removed. Those of a down cell stay."""
    gone, by_cell = set(), defaultdict(set)
    uncounted = _some_uncounted()
    cells = dict(InstanceMapping.objects.filter(pk__in=uncounted).values_list("pk", "cell_id"))
    for server_id in uncounted:
        if server_id not in cells:
            gone.add(server_id)
        elif cells[server_id] is not None:
            by_cell[cells[server_id]].add(server_id)
    for cell in Cell.objects.filter(pk__in=by_cell):
        deleted = scatter.ask_one(cell, lambda _, ids=by_cell[cell.pk]: _deleted(ids))  # type: ignore[misc]
        if not isinstance(deleted, scatter.CellFailure):
            gone |= deleted
    return ServerGroupMember.objects.filter(server_id__in=gone).delete()[0]


def _some_uncounted() -> list[str]:
    global _after
    counted = InstanceMapping.objects.filter(server_groups.LIVING, pk=OuterRef("server_id"))
    members = ServerGroupMember.objects.filter(~Exists(counted), pk__gt=_after).order_by("pk")
    found = list(members.values_list("pk", "server_id")[:BATCH])
    _after = found[-1][0] if len(found) == BATCH else 0
    return [server_id for _, server_id in found]


def _deleted(server_ids: Collection[str]) -> set[str]:
    return set(Instance.objects.filter(uuid__in=server_ids, deleted=True).values_list("uuid", flat=True))
