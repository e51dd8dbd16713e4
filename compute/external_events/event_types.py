"""The table of external events: since which microversion, permitted tags, and the action that carries each out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compute.actions.extend_volume import ExtendVolume
from compute.actions.external_event import ExternalEvent
from compute.actions.power_update import NAMES, PowerUpdate
from compute.contract.microversion import Version
from compute.operations.action import ServerAction

STATUSES = ("failed", "completed", "in-progress")


@dataclass(frozen=True, slots=True)
class EventType:
    """One event name. `tags`: permitted tags and the action name shown for each; empty permits any tag."""

    name: str
    since: Version
    about: str  # what the tag names, for people
    action: type[ServerAction[Any]] = ExternalEvent  # carries it out
    needs_tag: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    both_hosts: bool = False  # a moving server: delivered to source and destination

    def takes(self, tag: str) -> bool:
        """Whether the tag is permitted."""
        if not tag:
            return not self.needs_tag
        return not self.tags or tag in self.tags


_ALL = (
    EventType("network-changed", (2, 1), "port id", both_hosts=True),
    EventType("network-vif-plugged", (2, 1), "port id", both_hosts=True),
    EventType("network-vif-unplugged", (2, 1), "port id", both_hosts=True),
    EventType("network-vif-deleted", (2, 1), "port id", both_hosts=True),
    EventType("volume-extended", (2, 51), "volume id", ExtendVolume, needs_tag=True),
    EventType("power-update", (2, 76), "POWER_ON or POWER_OFF", PowerUpdate, needs_tag=True, tags=NAMES),
    EventType("accelerator-request-bound", (2, 82), "ARQ uuid", needs_tag=True),
    EventType("volume-reimaged", (2, 93), "volume id"),
)  # fmt: skip
EVENT_TYPES = {kind.name: kind for kind in _ALL}


def known(version: Version) -> list[str]:
    """Return the event names that a request of this microversion may use."""
    return [kind.name for kind in _ALL if kind.since <= version]
