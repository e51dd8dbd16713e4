"""Compare the mappings of servers whose delete was requested with their cells.

The API sets `queued_for_delete` in the global database first, and then writes to the cell. If it is killed between the
two, or the cell's database goes away just then, the flag stays on a living server without a delete: that server is
counted again. A server whose row is deleted gets `is_deleted`, and lists no longer ask its cell for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from django.conf import settings
from django.db.models import Q

from cells import batches, scatter
from cells.models import BuildRequest, Cell, DeferredDelete, InstanceMapping
from cloud import log
from compute.actions.delete import Delete
from compute.actions.restore import Restore
from compute.actions.soft_delete import SoftDelete
from compute.models import Instance, InstanceAction
from compute.state import TaskState, VmState

logger = log.get(__name__)
BATCH = 500
COUNTING = [kind.__name__ for kind in (Delete, SoftDelete, Restore)]  # these set or clear the flag themselves
_seen: dict[str, float] = {}  # by server id: when it was first seen alive with the flag (monotonic)
_cursor = batches.BatchCursor()  # flags of deleted servers stay forever


def clear() -> int:
    """Check some flags of every cell, and those that were wrong before; return how many servers are counted again.

    A flag is cleared only after it was wrong for RESEND_AFTER: the delete may be on its way.
    """
    again = 0
    flags = {cell.pk: _some_flagged(cell) for cell in Cell.objects.all()}
    for cell, flagged, (living, wrong) in batches.ask_cells(flags, _read):
        ended = InstanceMapping.objects.filter(pk__in=flagged - living, is_deleted=False, queued_for_delete=True)
        ended.update(is_deleted=True)
        for server_id in flagged - wrong:
            _seen.pop(server_id, None)
        for server_id in wrong:
            since = _seen.setdefault(server_id, time.monotonic())
            if time.monotonic() - since >= settings.RESEND_AFTER:
                again += _take_back(cell, server_id)
    return again


def _some_flagged(cell: Cell) -> set[str]:
    flagged = InstanceMapping.objects.filter(cell=cell, queued_for_delete=True)
    ids = {server_id for (server_id,) in _cursor.next(flagged.values_list("pk"), BATCH, cell.pk)}
    latest = flagged.filter(is_deleted=False).order_by("-created_at").values_list("pk", flat=True)[:BATCH]
    wanted = {*ids, *latest, *flagged.filter(pk__in=list(_seen)[:BATCH]).values_list("pk", flat=True)}
    # The scheduler deletes these, when they are placed or when their cell is back.
    later = (BuildRequest.objects, DeferredDelete.objects)
    return wanted.difference(*(rows.filter(pk__in=wanted).values_list("pk", flat=True) for rows in later))


def _read(ids: Collection[str]) -> tuple[set[str], set[str]]:
    """Return those whose row is not deleted in the targeted cell, and of these those without a delete under way."""
    return set(Instance.objects.living(uuid__in=ids).values_list("uuid", flat=True)), _not_being_deleted(ids)


def _not_being_deleted(ids: Collection[str]) -> set[str]:
    """Servers that live in the targeted cell without a delete under way, or a restore, which clears its own flag."""
    going_on = InstanceAction.objects.filter(server_id__in=ids, key__in=COUNTING, finished_at__isnull=True)
    living = Instance.objects.living(uuid__in=ids).exclude(vm_state=VmState.SOFT_DELETED)
    busy = Q(task_state__in=[TaskState.DELETING, TaskState.SOFT_DELETING])
    return set(living.exclude(busy).values_list("uuid", flat=True)) - set(going_on.values_list("server_id", flat=True))


def _take_back(cell: Cell, server_id: str) -> bool:
    """Clear the flag, then check again: if a delete has come at this moment, set it again."""
    mapping = InstanceMapping.objects.filter(pk=server_id)
    mapping.update(queued_for_delete=False, is_deleted=False)
    _seen.pop(server_id, None)
    if scatter.ask_one(cell, lambda _: _not_being_deleted([server_id])) == {server_id}:
        logger.warning("quota.usage_restored", server=server_id, cell=cell.name)
        return True
    mapping.update(queued_for_delete=True)
    return False
