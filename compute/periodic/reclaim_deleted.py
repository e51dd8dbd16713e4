"""Delete soft-deleted servers that were not restored (Nova: reclaim_instance_interval)."""

from __future__ import annotations

from django.conf import settings
from django.db.models import QuerySet

from cells import database_clock
from cells.models import InstanceMapping
from cloud import log
from compute.actions.delete import Delete
from compute.models import Instance
from compute.operations.action import ActionRequest
from compute.state import VmState

logger = log.get(__name__)
BATCH = 500  # per round


def reclaim() -> int:
    """Delete the servers of the targeted cell that are soft-deleted for longer than the interval; return how many.

    Several conductors may run it at once, and the user may restore at the same moment: the compare-and-set of the
    server's state decides. The time is from the server's row, so a restart changes nothing.
    """
    if settings.RECLAIM_INSTANCE_INTERVAL <= 0:
        return 0
    reclaimed = 0
    for instance in _overdue():
        asked = ActionRequest.of_cloud(instance)
        if Delete().reclaim(instance, asked):
            InstanceMapping.objects.filter(pk=instance.uuid).update(queued_for_delete=True)
            logger.info("reclaim.deleted", server=instance.uuid, request_id=asked.request_id)
            reclaimed += 1
    return reclaimed


def _overdue() -> QuerySet[Instance]:
    kept = Instance.objects.living(vm_state=VmState.SOFT_DELETED, task_state__isnull=True)
    long_ago = database_clock.now(-settings.RECLAIM_INSTANCE_INTERVAL)
    return kept.filter(soft_deleted_at__lt=long_ago).order_by("soft_deleted_at")[:BATCH]
