"""A volume of a server has grown."""

from __future__ import annotations

from compute.operations.action import OPS, ServerAction, StepContext, StepSpec
from compute.virt.base import NotSupported


class ExtendVolume(ServerAction):
    """Opened by `external_events.record`. It ends with a fault, and the server is as it was: it has no volumes."""

    name = "extend_volume"
    policy = "os_compute_api:os-server-external-events:create"
    steps = (StepSpec("extend", "compute_extend_volume", queue=OPS),)

    def extend(self, run: StepContext) -> None:
        """Raises NotSupported, always: there is no volume service, so a guest has nothing but its own disk."""
        volume = run.params["event"]["tag"]
        raise NotSupported(f"volume {volume} is not attached to server {run.instance.uuid}: servers have no volumes")

    def still_applies(self, run: StepContext) -> bool:
        """Not of a server that is gone."""
        return not run.instance.deleted
