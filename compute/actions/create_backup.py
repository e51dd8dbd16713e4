"""Make an image of a server's disk that replaces an older backup."""

from __future__ import annotations

from typing import Any

from cloud.errors import Forbidden, NotFound
from cloud.images import service
from compute.actions.bases.snapshot import FROM, Snapshot
from compute.contract.validation import METADATA, NAME, NON_NEGATIVE
from compute.errors import StateConflict
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, ActionResponse, On, StepContext, StepSpec
from compute.state import Move, TaskState
from compute.virt.base import PowerState


class CreateBackup(Snapshot):
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

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """Prepare a snapshot, and add the rotation and the type of the backup to the params."""
        kept = {"rotation": int(asked.body["rotation"]), "backup_type": asked.body["backup_type"]}
        return kept | super().prepare(instance, asked)

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """Return the image id, but none with rotation 0: that image is not kept."""
        return super().answer(params, asked) if params["rotation"] else ActionResponse(202)

    def rotate(self, run: StepContext) -> None:
        """Delete the backups beyond the rotation. A missing image is success; a protected one is kept.

        Runs on a conductor, which has access to the global database.
        """
        params = run.params
        backups = service.backups(run.action.project_id, run.instance.uuid, params["backup_type"])
        gone, kept = 0, 0
        for image in backups[params["rotation"] :]:
            try:
                with run.fenced():
                    service.delete(image)
                gone += 1
            except Forbidden:
                kept += 1
            except NotFound:
                continue
        run.note(f"{gone} deleted{f', {kept} protected and kept' if kept else ''}")

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """Finish the move. A server that another action took during `rotate` has its backup all the same."""
        try:
            super().complete(run, power_state)
        except StateConflict:
            if run.step.name != "rotate":
                raise
