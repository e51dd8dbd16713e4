"""What every image made of a server's disk has in common: its record first, then its bytes, or neither."""

from __future__ import annotations

from typing import Any, ClassVar

from cloud.images import service, tickets
from compute.contract import bare_metal
from compute.models import Instance
from compute.operations import journal
from compute.operations.action import ActionRequest, ActionResponse, On, ServerAction, StepContext, StepSpec
from compute.placement import quota
from compute.servers import image_transfer
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.PAUSED, VmState.SUSPENDED})


class Snapshot(ServerAction):
    """The image's record is made at once; the host fills it; a failure discards it. The server stays as it was."""

    respects_lock = False
    unsupported_on_bare_metal = bare_metal.CANNOT_COPY
    move: ClassVar[Move | None] = Move(FROM, TaskState.IMAGE_SNAPSHOT)
    clean_up = StepSpec("discard_image", "conductor_discard_image", on=On.CONDUCTOR)

    def properties(self, asked: ActionRequest) -> dict[str, str]:
        """What tells this kind of image from others."""
        return {"image_type": "snapshot"}

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """Makes the image's record, so that its id can be answered."""
        metadata = asked.body.get("metadata") or {}
        quota.check_metadata(asked.caller.project_id, metadata)
        properties = {
            **{k: str(v) for k, v in instance.image.get("properties", {}).items()},
            **metadata,
            **self.properties(asked),
            "instance_uuid": instance.uuid,
            "base_image_ref": instance.image_id,
        }
        image = service.create_snapshot_record(asked.caller, asked.body["name"], properties)
        return {"image_id": image.id, "image_ticket": tickets.issue(image.id, "write")}

    def unprepare(self, params: dict[str, Any]) -> None:
        """A refused snapshot leaves no image record."""
        service.discard(params["image_id"])

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """Location before 2.45, the id in the body since."""
        if asked.microversion >= (2, 45):
            return ActionResponse(202, {"image_id": params["image_id"]})
        return ActionResponse(202, headers={"Location": image_transfer.image_url(params["image_id"])})

    def snapshot(self, run: StepContext) -> None:
        """Copy the disk and send it to the image service. An image that is there already is success."""
        with image_transfer.scratch(run.params["image_id"]) as path:
            run.hypervisor.snapshot(run.instance.uuid, path)
            image_transfer.upload(run.params["image_id"], run.params["image_ticket"], path)

    def after_failure(self, run: StepContext, error: BaseException) -> StepSpec | None:
        """An image that will not come is discarded before the server is free again."""
        return self.clean_up if run.step.name == "snapshot" else None

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """Idle again; an action that ended by discarding its image has failed."""
        super().complete(run, power_state)
        if run.step.name == "discard_image":
            journal.close_action(run.action, outcome="the snapshot failed; its image was discarded", failed=True)

    def discard_image(self, run: StepContext) -> None:
        """On a conductor, which may touch the global side."""
        with run.fenced():
            service.discard(run.params["image_id"])
