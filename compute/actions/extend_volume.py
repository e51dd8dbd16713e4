"""Handle the external event volume-extended: a volume of a server has grown."""

from __future__ import annotations

from compute.actions.bases.event import EventParams
from compute.operations.action import OPS, ServerAction, StepContext, StepSpec
from compute.virt.base import NotSupported


class ExtendVolume(ServerAction[EventParams]):
    """Opened by `external_events.journal.record`. It ends with a fault and changes nothing."""

    name = "extend_volume"
    policy = "os_compute_api:os-server-external-events:create"
    steps = (StepSpec("extend", "compute_extend_volume", queue=OPS),)

    def extend(self, run: StepContext[EventParams]) -> None:
        """Raise NotSupported, always: there is no volume service, so a guest has only its own disk."""
        volume = run.params.event.tag
        raise NotSupported(f"volume {volume} is not attached to server {run.instance.uuid}: servers have no volumes")

    def still_applies(self, run: StepContext[EventParams]) -> bool:
        """Return False for a deleted server."""
        return not run.instance.deleted
