"""What createImage and createBackup have in common: the image record is created first, then filled or discarded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from cloud.images import service, tickets
from compute.contract import bare_metal
from compute.models import Instance
from compute.operations import journal
from compute.operations.action import (
    ActionParams,
    ActionRequest,
    ActionResponse,
    On,
    ServerAction,
    StepContext,
    StepSpec,
)
from compute.placement import quota
from compute.servers import image_transfer
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.PAUSED, VmState.SUSPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotParams(ActionParams):
    """The parameters of a createImage or createBackup."""

    image_id: str
    image_ticket: str  # permits the upload


S = TypeVar("S", bound=SnapshotParams)


class Snapshot(ServerAction[S]):
    """Base class of CreateImage and CreateBackup. The server stays as it was.

    The API creates the image record, the host uploads the data, and a failure discards the record.
    """

    respects_lock = False
    unsupported_on_bare_metal = bare_metal.CANNOT_COPY
    move: ClassVar[Move | None] = Move(FROM, TaskState.IMAGE_SNAPSHOT)
    clean_up = StepSpec("discard_image", "conductor_discard_image", on=On.CONDUCTOR)

    def properties(self, asked: ActionRequest) -> dict[str, str]:
        """Return the image properties that mark this kind of image."""
        return {"image_type": "snapshot"}

    def create_record(self, instance: Instance, asked: ActionRequest) -> SnapshotParams:
        """Create the image record, so that the response can name its id. Raises Forbidden."""
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
        return SnapshotParams(image_id=image.id, image_ticket=tickets.issue(image.id, "write"))

    def unprepare(self, params: S) -> None:
        """Discard the image record of a refused snapshot."""
        service.discard(params.image_id)

    def answer(self, params: S, asked: ActionRequest) -> ActionResponse:
        """Return the image id: in the Location header before 2.45, in the body since."""
        if asked.microversion >= (2, 45):
            return ActionResponse(202, {"image_id": params.image_id})
        return ActionResponse(202, headers={"Location": image_transfer.image_url(params.image_id)})

    def snapshot(self, run: StepContext[S]) -> None:
        """Copy the disk and upload it to the image service. An image that is stored already is success."""
        with image_transfer.scratch(run.params.image_id) as path:
            run.hypervisor.snapshot(run.instance.uuid, path)
            image_transfer.upload(run.params.image_id, run.params.image_ticket, path)

    def after_failure(self, run: StepContext[S], error: BaseException) -> StepSpec | None:
        """Return `discard_image`: the image record goes before the server takes the next request."""
        return self.clean_up if run.runs(self.snapshot) else None

    def complete(self, run: StepContext[S], power_state: PowerState | None) -> None:
        """Finish the move; after `discard_image` close the action as failed."""
        super().complete(run, power_state)
        if run.runs(self.discard_image):
            journal.close_action(run.action, outcome="the snapshot failed; its image was discarded", failed=True)

    def discard_image(self, run: StepContext[S]) -> None:
        """Discard the image record. Runs on a conductor, which has access to the global database."""
        with run.fenced():
            service.discard(run.params.image_id)
