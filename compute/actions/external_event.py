"""Let a host hear what a network, an accelerator or a volume service says of a server."""

from __future__ import annotations

from cloud import log
from compute.operations.action import OPS, ServerAction, StepContext, StepSpec

logger = log.get(__name__)


class HearEvent(ServerAction):
    """Opened by `external_events.record`, on each host the server is on. Nobody waits for such an event here."""

    name = "hear_event"
    policy = "os_compute_api:os-server-external-events:create"
    steps = (StepSpec("hear", "compute_hear_event", queue=OPS),)
    is_shown = False

    def hear(self, run: StepContext) -> None:
        """A line of log, as Nova's for an event that nobody waits for."""
        event = run.params["event"]
        run.note(f"unexpected event {event['name']}")
        logger.warning("event.unexpected", event_name=event["name"], tag=event["tag"], status=event["status"])

    def still_applies(self, run: StepContext) -> bool:
        """Not of a server that is gone."""
        return not run.instance.deleted
