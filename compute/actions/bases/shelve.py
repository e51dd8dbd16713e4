"""What the shelve actions have in common: the shelved image, and the removal from the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloud.caller import Caller
from cloud.images import service
from compute import state
from compute.models import Instance
from compute.operations.action import P, ServerAction, StepContext
from compute.placement import claims
from compute.state import VmState
from compute.virt.base import PowerState


class Offloads(ServerAction[P]):
    """Base class of actions with a step `offload`. Once it has begun nothing is undone.

    From then on the image is the only copy of the disk that is certain to exist.
    """

    def offload(self, run: StepContext[P]) -> None:
        """Destroy the guest. A missing guest is success."""
        run.hypervisor.destroy(run.instance.uuid)

    def retry_always(self, name: str) -> bool:
        """Return True for `offload`: a half-removed guest is of no use."""
        return name == self.offload.__name__ or super().retry_always(name)

    def still_applies(self, run: StepContext[P]) -> bool:
        """Return True for a repeated `offload`, even when another action has taken the server."""
        return (run.runs(self.offload) and run.step.attempts > 1) or super().still_applies(run)

    def record_step(self, run: StepContext[P], power_state: PowerState | None) -> None:
        """Record after `offload` that the server has no host, and release its allocation.

        Also when another action has taken the server.
        """
        if run.runs(self.offload):
            leave_host(run.instance)

    def complete(self, run: StepContext[P], power_state: PowerState | None) -> None:
        """Finish the move, so that the server takes the next request."""
        move = self.move_for(run.params)
        if move is not None:
            state.finish(run.instance, move, None if run.runs(self.offload) else power_state)


def leave_host(instance: Instance) -> None:
    """Record that the server has no host, and release its allocation. In the transaction that records why."""
    where = {"host": "", "node": "", "power_state": PowerState.NOSTATE}
    state.set_location(instance, vm_state=VmState.SHELVED_OFFLOADED, **where)
    claims.release(instance.uuid)


def is_offloading(run: StepContext[P]) -> bool:
    """Return whether the step `offload` of this action has ever begun."""
    return run.action.steps.filter(name=Offloads.offload.__name__, attempts__gt=0).exists()


# -- the image


def create_image_record(instance: Instance, image_id: str) -> None:
    """Create the record of the shelved image, for a host to fill. An existing record is success.

    Runs on a conductor. The image belongs to the server's project, not to the caller's.
    """
    properties = {
        **{key: str(value) for key, value in instance.image.get("properties", {}).items()},
        "image_type": "snapshot", "instance_uuid": instance.uuid, "base_image_ref": instance.image_id,
    }  # fmt: skip
    owner = Caller(instance.user_id, project_id=instance.project_id)
    service.create_snapshot_record(owner, f"{instance.display_name[:247]}-shelved", properties, image_id=image_id)


def delete_image(image_id: str) -> None:
    """Delete a shelved image, on a conductor (global database). A missing image is success; a protected one stays."""
    service.remove(image_id)


def facts_of(image_id: str) -> Mapping[str, Any] | None:
    """Return what a host needs to know of a shelved image; None when the image is not active any more."""
    image = service.active(image_id)
    return None if image is None else {
        "disk_format": image.disk_format, "size": image.size, "virtual_size": image.virtual_size,
        "checksum": image.checksum,
    }  # fmt: skip
