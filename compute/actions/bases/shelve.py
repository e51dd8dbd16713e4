"""Servers on a shelf: their disk is an image, and in the end no host has anything of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.conf import settings

from cells import database_clock
from cloud import log
from cloud.caller import Caller
from cloud.errors import Conflict
from cloud.images import service
from compute import state
from compute.models import Instance
from compute.operations import dispatch, journal, registry
from compute.operations.action import ActionRequest, ServerAction, StepContext
from compute.placement import claims
from compute.state import VmState
from compute.virt.base import PowerState

logger = log.get(__name__)
BATCH = 500


class Offloads(ServerAction):
    """Has a step `offload`. Once that is begun nothing is taken back: the image is the server's only sure disk."""

    def offload(self, run: StepContext) -> None:
        """Gone already is success."""
        run.hypervisor.destroy(run.instance.uuid)

    def retry_always(self, name: str) -> bool:
        """A guest that is half gone is of no use to anybody."""
        return name == "offload" or super().retry_always(name)

    def still_applies(self, run: StepContext) -> bool:
        """Carried to its end, whoever took the server meanwhile."""
        return (run.step.name == "offload" and run.step.attempts > 1) or super().still_applies(run)

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """It is nowhere, whoever took it meanwhile, and its room is free."""
        if run.step.name == "offload":
            leave_host(run.instance)

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """Free for the next request."""
        move = self.move_for(run.params)
        if move is not None:
            state.finish(run.instance, move, None if run.step.name == "offload" else power_state)


def leave_host(instance: Instance) -> None:
    """Its record has no host any more. In the transaction that says why."""
    where = {"host": "", "node": "", "power_state": PowerState.NOSTATE}
    state.set_location(instance, vm_state=VmState.SHELVED_OFFLOADED, **where)
    claims.release(instance.uuid)


def is_offloading(run: StepContext) -> bool:
    """Whether the offload of this action was ever begun."""
    return run.action.steps.filter(name="offload", attempts__gt=0).exists()


# -- the image


def make_image(instance: Instance, image_id: str) -> None:
    """Its record, for a host to fill; on a conductor. Made already is success. It is the project's, whoever asks."""
    properties = {
        **{key: str(value) for key, value in instance.image.get("properties", {}).items()},
        "image_type": "snapshot", "instance_uuid": instance.uuid, "base_image_ref": instance.image_id,
    }  # fmt: skip
    owner = Caller(instance.user_id, project_id=instance.project_id)
    service.create_snapshot_record(owner, f"{instance.display_name[:247]}-shelved", properties, image_id=image_id)


def drop_image(image_id: str) -> None:
    """On a conductor, which may touch the global side. Gone already is success; a protected one is the user's."""
    service.remove(image_id)


def leave_image(instance: Instance) -> None:
    """What a deleted server has on the shelf goes, too. In the transaction that deletes it."""
    if not instance.shelved_image_id:
        return
    action = journal.open_action(
        instance, name="drop_shelved_image", key="DropShelvedImage", request_id=f"req-{uuid4()}", user_id="",
        project_id=instance.project_id, params={"image_id": instance.shelved_image_id},
    )  # fmt: skip
    journal.open_step(action, name="drop_image", event="conductor_drop_shelved_image", host="", queue=dispatch.OPS)


# -- in the conductor's own time


def offload_due() -> int:
    """Offload the servers of the targeted cell that are shelved for long enough; how many were asked for.

    Any number of conductors may do this at once: the state decides who was first.
    """
    if settings.SHELVED_OFFLOAD_TIME < 0:
        return 0
    since = database_clock.now(-settings.SHELVED_OFFLOAD_TIME)
    shelved = Instance.objects.filter(vm_state=VmState.SHELVED, task_state__isnull=True, deleted=False)
    asked_for = 0
    for instance in shelved.filter(shelved_at__lte=since).order_by("shelved_at")[:BATCH]:
        asked = ActionRequest(Caller("", project_id=instance.project_id), f"req-{uuid4()}")
        with suppress(Conflict):
            registry.named("ShelveOffload").submit(instance, asked)
            logger.info("shelved.offload", server=instance.uuid, request_id=asked.request_id)
            asked_for += 1
    return asked_for


def facts_of(image_id: str) -> Mapping[str, Any] | None:
    """What a host has to know of the image of a shelved server; None when somebody has deleted it."""
    image = service.active(image_id)
    return None if image is None else {
        "disk_format": image.disk_format, "size": image.size, "virtual_size": image.virtual_size,
        "checksum": image.checksum,
    }  # fmt: skip
