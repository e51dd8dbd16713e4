"""Make an image of a server's disk that takes the place of an older one."""

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
    """The newest `rotation` backups of this server and type are kept; with 0, not even the new one."""

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
        StepSpec("snapshot", "compute_backup_instance", no_return=True, long=True),  # the image is there: it counts
        StepSpec("rotate", "conductor_rotate_backups", On.CONDUCTOR, OPS),
    )

    def properties(self, asked: ActionRequest) -> dict[str, str]:
        """By these the next backup finds it."""
        return {"image_type": "backup", "backup_type": asked.body["backup_type"]}

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """As a snapshot, and how many are kept."""
        kept = {"rotation": int(asked.body["rotation"]), "backup_type": asked.body["backup_type"]}
        return kept | super().prepare(instance, asked)

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """No image is named that is not kept."""
        return super().answer(params, asked) if params["rotation"] else ActionResponse(202)

    def rotate(self, run: StepContext) -> None:
        """On a conductor, which may touch the global side: delete what is too old. Gone already is success."""
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
        """A server that was taken while older backups went has its backup all the same."""
        try:
            super().complete(run, power_state)
        except StateConflict:
            if run.step.name != "rotate":
                raise
