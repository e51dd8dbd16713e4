"""What the fake hypervisor puts on record of its own: every change a verb made, and no verb that made none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

KEPT = 100_000  # rows


class Effect(StrEnum):
    """One kind of change to a guest."""

    SPAWNED = "spawned"
    BUILT = "built, off"
    POWERED_ON = "powered on"
    OFF_BY_GUEST = "powered off by guest"
    OFF_BY_FORCE = "powered off by force"
    CRASHED = "crashed"
    REBOOTED_BY_GUEST = "rebooted by guest"
    REBOOTED = "rebooted"
    PAUSED = "paused"
    UNPAUSED = "unpaused"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    SNAPSHOT = "snapshot taken"
    DESTROYED = "destroyed"
    MIGRATED_OUT = "migrated out"
    MIGRATED_IN = "migrated in"
    TAKEN_BACK = "taken back"
    RESCUED = "rescued"
    UNRESCUED = "unrescued"
    SWITCHED_ON = "switched on by hand"
    SWITCHED_OFF = "switched off by hand"


# of a guest that is off: how that came
ENDS = {Effect.OFF_BY_GUEST: "guest", Effect.OFF_BY_FORCE: "forced", Effect.CRASHED: "crashed",
        Effect.SWITCHED_OFF: "forced"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """One change: when (seconds since 1970), to which guest, and what the caller called it, if anything."""

    at: float
    uuid: str
    effect: Effect
    mark: str
