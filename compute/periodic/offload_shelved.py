"""Offload servers that have been shelved for a while (Nova: shelved_offload_time)."""

from __future__ import annotations

from contextlib import suppress

from django.conf import settings

from cells import database_clock
from cloud import log
from cloud.errors import Conflict
from compute.actions.shelve_offload import ShelveOffload
from compute.models import Instance
from compute.operations.action import ActionRequest
from compute.state import VmState

logger = log.get(__name__)
BATCH = 500


def offload() -> int:
    """Submit the offload of servers shelved for SHELVED_OFFLOAD_TIME, in the targeted cell; return how many.

    Several conductors may do this at once: the state transition lets one of them win.
    """
    if settings.SHELVED_OFFLOAD_TIME < 0:
        return 0
    since = database_clock.now(-settings.SHELVED_OFFLOAD_TIME)
    shelved = Instance.objects.living(vm_state=VmState.SHELVED, task_state__isnull=True)
    submitted = 0
    for instance in shelved.filter(shelved_at__lte=since).order_by("shelved_at")[:BATCH]:
        asked = ActionRequest.of_cloud(instance)
        with suppress(Conflict):
            ShelveOffload().submit(instance, asked)
            logger.info("shelved.offload_started", server=instance.uuid, request_id=asked.request_id)
            submitted += 1
    return submitted
