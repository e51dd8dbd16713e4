"""What the actions for external events have in common: the event, as it was received."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from compute.operations.action import ActionParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEvent:
    """One event; `request_id`, name and tag, with the time, tell a repeated event from a new one."""

    name: str
    tag: str
    status: str
    request_id: str
    received_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EventParams(ActionParams):
    """The parameters of an action that an external event opened."""

    event: ReceivedEvent
