"""Make an image of a server's disk."""

from __future__ import annotations

from compute.actions.bases.snapshot import Snapshot, SnapshotParams
from compute.contract.validation import METADATA, NAME
from compute.models import Instance
from compute.operations.action import ActionRequest, StepSpec


class CreateImage(Snapshot[SnapshotParams]):
    """Copy the disk to an image. The server stays as it was."""

    key, name = "createImage", "createImage"
    policy = "os_compute_api:servers:create_image"
    body = {
        "type": "object",
        "properties": {"name": NAME, "metadata": METADATA},
        "required": ["name"],
        "additionalProperties": False,
    }
    steps = (StepSpec("snapshot", "compute_snapshot_instance", long=True),)

    def prepare(self, instance: Instance, asked: ActionRequest) -> SnapshotParams:
        """Create the image record. Raises Forbidden."""
        return self.create_record(instance, asked)
