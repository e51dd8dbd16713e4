"""Deletes requested while the server's cell is down: accepted, kept in the global database, carried out later.

Once accepted, the server is no longer listed as UNKNOWN and no longer counted by the quota.
"""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from cells import circuit_breaker, scatter
from cells.models import Cell, DeferredDelete, InstanceMapping
from cloud import log
from cloud.caller import ADMIN, Caller
from compute.errors import CellDown, Conflict, ServerLocked, ServerNotFound
from compute.models import Instance
from compute.operations.action import ActionRequest
from compute.servers import deletion, lookup, mappings

logger = log.get(__name__)
BATCH = 500  # per cell and round


def delete_or_defer(mapping: InstanceMapping, asked: ActionRequest) -> bool:
    """Delete a server, whatever its state; False when its cell is down and the delete is kept for later.

    A server that its cell has lost (the cell was restored from a backup) is forgotten. Raises ServerNotFound,
    ServerNotReady, ServerLocked, Conflict.
    """
    try:
        with lookup.server(mapping.server_id, asked.caller) as instance:
            if instance.locked_by and not asked.caller.is_admin:
                raise ServerLocked(mapping.server_id)
            with deletion.marked_for_delete(mapping.server_id):
                deletion.action_for(instance).submit(instance, asked)
    except CellDown:
        defer(mapping, asked)
        return False
    except ServerNotFound:
        if not mappings.forget(mapping):
            raise
    return True


def defer(mapping: InstanceMapping, asked: ActionRequest) -> None:
    """Keep a delete for later. A repeated request replaces the earlier one.

    Whether the server is locked is checked when the delete is carried out.
    """
    caller = asked.caller
    said = {
        "cell_id": mapping.cell_id, "project_id": caller.project_id, "user_id": caller.user_id,
        "is_admin": caller.is_admin, "request_id": asked.request_id, "words": asked.body or {},
        "asked_at": timezone.now(),
    }  # fmt: skip
    with transaction.atomic(using="default"):
        DeferredDelete.objects.update_or_create(server_id=mapping.server_id, defaults=said)
        InstanceMapping.objects.filter(pk=mapping.pk).update(queued_for_delete=True)
    logger.info("delete.deferred", server=mapping.server_id, cell=mapping.cell_id)


def carry_out() -> int:
    """Carry out the deletes of cells that are back; return how many. Several schedulers may run it at once."""
    done = 0
    for cell in Cell.objects.filter(late_deletes__isnull=False).distinct():
        if circuit_breaker.known_down(cell.id):
            continue
        for kept in cell.late_deletes.order_by("asked_at")[:BATCH]:
            answer = scatter.ask_one(cell, lambda _, one=kept: _delete(one))  # type: ignore[misc]
            if isinstance(answer, scatter.CellFailure):
                break
            done += _forget(kept, answer)
    return done


def _delete(kept: DeferredDelete) -> str:
    """Delete in the targeted cell; return why it is refused, or an empty string. Already deleted is success."""
    instance = Instance.objects.living(uuid=kept.server_id).first()
    if instance is None:
        return ""
    if instance.locked_by and not kept.is_admin:
        return "it is locked"
    caller = Caller(kept.user_id, project_id=kept.project_id, roles=ADMIN if kept.is_admin else frozenset())
    try:
        deletion.action_for(instance).submit(instance, ActionRequest(caller, kept.request_id, kept.words))
    except Conflict as refused:
        return str(refused)
    return ""


def _forget(kept: DeferredDelete, refused: str) -> bool:
    """Remove the deferred delete; if it was refused, the server is counted by the quota again."""
    with transaction.atomic(using="default"):
        if not DeferredDelete.objects.filter(pk=kept.pk, request_id=kept.request_id).delete()[0]:
            return False  # another scheduler was faster, or the delete was requested again
        if refused:
            InstanceMapping.objects.filter(pk=kept.pk).update(queued_for_delete=False)
    logger.info("delete.deferred_finished", server=kept.server_id, refused=refused, request_id=kept.request_id)
    return not refused
