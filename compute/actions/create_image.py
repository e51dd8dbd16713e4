"""Make an image of a server's disk."""

from __future__ import annotations

from compute.actions.bases.snapshot import Snapshot
from compute.contract.validation import METADATA, NAME
from compute.operations.action import StepSpec


class CreateImage(Snapshot):
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
