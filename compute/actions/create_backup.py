"""Make an image of a server's disk that replaces an older backup."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.errors import Forbidden, NotFound
from cloud.images import service
from compute.actions.bases.snapshot import FROM, Snapshot, SnapshotParams
from compute.contract.validation import METADATA, NAME, NON_NEGATIVE
from compute.errors import StateConflict
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, ActionResponse, On, StepContext, StepSpec
from compute.state import Move, TaskState
from compute.virt.base import PowerState


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupParams(SnapshotParams):
    """The parameters of a createBackup."""

    rotation: int  # how many backups of the type are kept
    backup_type: str


class CreateBackup(Snapshot[BackupParams]):
    """Copy the disk to an image. The newest `rotation` backups of this type are kept; with 0, not even the new one."""

    key, name = "createBackup", "createBackup"
    policy = "os_compute_api:os-create-backup"
    body = {
        "type": "object",
        "properties": {
            "name": NAME,
            "backup_type": {"type": "string"},
            "rotation": {**NON_NEGATIVE, "maxLength": 18},
            "metadata": METADATA,
        },
        "required": ["name", "backup_type", "rotation"],
        "additionalProperties": False,
    }
    move = Move(FROM, TaskState.IMAGE_BACKUP)
    steps = (
        StepSpec("snapshot", "compute_backup_instance", no_return=True, long=True),  # a stored image stays
        StepSpec("rotate", "conductor_rotate_backups", On.CONDUCTOR, OPS),
    )

    def properties(self, asked: ActionRequest) -> dict[str, str]:
        """Return the properties by which the next backup finds this one."""
        return {"image_type": "backup", "backup_type": asked.body["backup_type"]}

    def prepare(self, instance: Instance, asked: ActionRequest) -> BackupParams:
        """Create the image record; return it with the rotation and the type of the backup. Raises Forbidden."""
        image = self.create_record(instance, asked)
        return BackupParams(
            image_id=image.image_id, image_ticket=image.image_ticket, rotation=int(asked.body["rotation"]),
            backup_type=asked.body["backup_type"],
        )  # fmt: skip

    def answer(self, params: BackupParams, asked: ActionRequest) -> ActionResponse:
        """Return the image id, but none with rotation 0: that image is not kept."""
        return super().answer(params, asked) if params.rotation else ActionResponse(202)

    def rotate(self, run: StepContext[BackupParams]) -> None:
        """Delete the backups beyond the rotation. A missing image is success; a protected one is kept.

        Runs on a conductor, which has access to the global database.
        """
        backups = service.backups(run.action.project_id, run.instance.uuid, run.params.backup_type)
        gone, kept = 0, 0
        for image in backups[run.params.rotation :]:
            try:
                with run.fenced():
                    service.delete(image)
                gone += 1
            except Forbidden:
                kept += 1
            except NotFound:
                continue
        run.note(f"{gone} deleted{f', {kept} protected and kept' if kept else ''}")

    def complete(self, run: StepContext[BackupParams], power_state: PowerState | None) -> None:
        """Finish the move. A server that another action took during `rotate` has its backup all the same."""
        try:
            super().complete(run, power_state)
        except StateConflict:
            if not run.runs(self.rotate):
                raise
