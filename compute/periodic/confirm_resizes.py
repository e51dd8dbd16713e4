"""Confirm resizes and cold migrations that users have not confirmed (Nova: resize_confirm_window)."""

from __future__ import annotations

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from cells import database_clock
from cloud import log
from cloud.errors import BadRequest, Conflict
from compute.actions.confirm_resize import ConfirmResize
from compute.actions.migrate import Migrate
from compute.actions.resize import Resize
from compute.actions.revert_resize import RevertResize
from compute.migration import cold, moves
from compute.models import Instance, InstanceAction
from compute.operations.action import ActionParams, ActionRequest
from compute.state import VmState

logger = log.get(__name__)
# Each of these actions restarts the window: a user whose revert failed may try again.
RESTARTS = [kind.__name__ for kind in (Resize, Migrate, ConfirmResize, RevertResize)]


def confirm() -> int:
    """Confirm the servers of the targeted cell that have been resized for longer than the window; return how many.

    Several conductors may run it at once, and the user may confirm or revert at the same moment: the compare-and-set of
    the server's state decides. Servers whose source host cannot run the step now are skipped.
    """
    confirmed = 0
    for instance in _overdue():
        move = cold.awaiting_confirmation(instance)
        if move is None or not moves.can_run_steps(ActionParams.load(move.params).source):
            continue
        asked = ActionRequest.of_cloud(instance)
        try:
            ConfirmResize().submit(instance, asked)
        except (BadRequest, Conflict) as taken:
            logger.info("confirm_window.skipped", server=instance.uuid, reason=str(taken))
            continue
        logger.info("confirm_window.confirmed", server=instance.uuid, request_id=asked.request_id)
        confirmed += 1
    return confirmed


def _overdue() -> QuerySet[Instance]:
    """Servers resized and idle for longer than the window, by the time in the journal: a restart changes nothing."""
    said = InstanceAction.objects.filter(server_id=OuterRef("uuid"), key__in=RESTARTS).order_by("-pk")
    resized = Instance.objects.living(vm_state=VmState.RESIZED, task_state__isnull=True)
    since = resized.annotate(resized_at=Subquery(said.values("finished_at")[:1]))
    return since.filter(resized_at__lt=database_clock.now(-settings.RESIZE_CONFIRM_WINDOW))
