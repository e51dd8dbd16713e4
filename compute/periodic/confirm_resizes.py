"""Moves nobody said a word about: after a while they are confirmed, where the operator wants that."""

from __future__ import annotations

from uuid import uuid4

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from cells import database_clock
from cloud import log
from cloud.caller import Caller
from cloud.errors import BadRequest, Conflict
from compute.migration import cold, moves
from compute.models import Instance, InstanceAction
from compute.operations import registry
from compute.operations.action import ActionRequest
from compute.state import VmState

logger = log.get(__name__)
# The window begins anew with every word of the user's: who wanted to go back, and could not, may try again.
RESTARTS = ("Resize", "Migrate", "ConfirmResize", "RevertResize")


def confirm() -> int:
    """Confirm the servers of the targeted cell that are resized for longer than the window; how many.

    Any number of conductors may do this at once, and the user may confirm or revert at the same moment: the
    state decides who was first. Servers whose source cannot carry it out now are left to their users.
    """
    confirmed = 0
    for instance in _overdue():
        move = cold.last(instance)
        if move is None or not moves.takes_part(move.params["source"]):
            continue
        asked = ActionRequest(Caller("", project_id=instance.project_id), f"req-{uuid4()}")
        try:
            registry.named("ConfirmResize").submit(instance, asked)
        except (BadRequest, Conflict) as taken:
            logger.info("confirm_window.not_needed", server=instance.uuid, why=str(taken))
            continue
        logger.info("confirm_window.confirmed", server=instance.uuid, request_id=asked.request_id)
        confirmed += 1
    return confirmed


def _overdue() -> QuerySet[Instance]:
    """Resized and idle since before the window began; in the journal, so restarts change nothing."""
    said = InstanceAction.objects.filter(server_id=OuterRef("uuid"), key__in=RESTARTS).order_by("-pk")
    resized = Instance.objects.filter(vm_state=VmState.RESIZED, task_state__isnull=True, deleted=False)
    since = resized.annotate(resized_at=Subquery(said.values("finished_at")[:1]))
    return since.filter(resized_at__lt=database_clock.now(-settings.RESIZE_CONFIRM_WINDOW))
