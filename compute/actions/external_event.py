"""Pass external events of network, accelerator and volume services to the hosts of a server."""

from __future__ import annotations

from cloud import log
from compute.actions.bases.event import EventParams
from compute.operations.action import OPS, ServerAction, StepContext, StepSpec

logger = log.get(__name__)


class ExternalEvent(ServerAction[EventParams]):
    """Opened by `external_events.journal.record`, on each host the server is on. No step waits for such an event."""

    name = "external_event"
    policy = "os_compute_api:os-server-external-events:create"
    steps = (StepSpec("receive", "compute_external_event", queue=OPS),)
    is_shown = False

    def receive(self, run: StepContext[EventParams]) -> None:
        """Log the event, as Nova does for an event that no operation waits for."""
        event = run.params.event
        run.note(f"unexpected event {event.name}")
        logger.warning("event.unexpected", event_name=event.name, tag=event.tag, status=event.status)

    def still_applies(self, run: StepContext[EventParams]) -> bool:
        """Return False for a deleted server."""
        return not run.instance.deleted
