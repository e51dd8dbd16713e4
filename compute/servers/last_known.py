"""The last known state of servers, copied into the global database by each cell's conductors.

A read model: no decision depends on it. The API shows it, with its age, beside status UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, Q
from django.utils import timezone

from cells.models import Cell, ServerSnapshot
from cloud.caller import Caller
from compute import state
from compute.contract import policy
from compute.models import Instance

BATCH = 500
OVERLAP = timedelta(seconds=15)  # `updated_at` is set before the commit, by another machine's clock
COPIED = ("name", "vm_state", "task_state", "power_state", "host", "flavor", "addresses", "changed_at", "cell")
RULE = "os_compute_api:os-extended-server-attributes"


def sweep(cell_id: str) -> int:
    """Copy what has changed in the targeted cell since the last sweep; return how many servers.

    Several conductors may run it at once. Raises DatabaseError when either database is away: the next sweep catches up.
    """
    begun = timezone.now()
    latest = ServerSnapshot.objects.filter(cell_id=cell_id).aggregate(latest=Max("changed_at"))["latest"]
    copied = _copy(cell_id, latest - OVERLAP if latest else None)
    Cell.objects.filter(pk=cell_id).update(swept_at=begun)
    return copied


def of(server_ids: Iterable[str], caller: Caller) -> dict[str, dict[str, Any]]:
    """Return `{"last_known": {...}}` by server id, for servers of down cells. One query."""
    rows = ServerSnapshot.objects.select_related("cell").filter(pk__in=list(server_ids))
    sees_host = policy.allows(caller, RULE)
    return {row.pk: {"last_known": shown(row, sees_host=sees_host)} for row in rows}


def shown(row: ServerSnapshot, *, sees_host: bool) -> dict[str, Any]:
    """Return the record as the API shows it; `age` in seconds since the last sweep."""
    seen_at = row.cell.swept_at or row.changed_at
    server = {
        "name": row.name, "status": state.status(row.vm_state, row.task_state or None), "vm_state": row.vm_state,
        "power_state": row.power_state, "flavor": row.flavor, "addresses": row.addresses,
        "seen_at": seen_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "age": max(0, round((timezone.now() - seen_at).total_seconds())),
    }  # fmt: skip
    return server | ({"host": row.host} if sees_host else {})


def _copy(cell_id: str, since: datetime | None) -> int:
    rows = Instance.objects.order_by("updated_at", "pk")
    rows = rows.filter(updated_at__gte=since) if since else rows.filter(deleted=False)
    after, copied = Q(), 0
    while batch := list(rows.filter(after)[:BATCH]):
        living = [_row(cell_id, one) for one in batch if not one.deleted]
        ServerSnapshot.objects.bulk_create(
            living, update_conflicts=True, unique_fields=["server_id"], update_fields=COPIED
        )
        gone = [one.uuid for one in batch if one.deleted]
        if gone:
            ServerSnapshot.objects.filter(pk__in=gone, cell_id=cell_id).delete()
        last, copied = batch[-1], copied + len(batch)
        after = Q(updated_at__gt=last.updated_at) | Q(updated_at=last.updated_at, pk__gt=last.pk)
    return copied


def _row(cell_id: str, one: Instance) -> ServerSnapshot:
    return ServerSnapshot(
        server_id=one.uuid, cell_id=cell_id, name=one.display_name, vm_state=one.vm_state,
        task_state=one.task_state or "", power_state=one.power_state, host=one.host,
        flavor=one.flavor.get("original_name", ""), addresses=one.addresses, changed_at=one.updated_at,
    )  # fmt: skip
