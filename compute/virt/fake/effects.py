"""The fake driver's own record of every change that a verb made; a verb that changed nothing leaves no row."""

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


# effect that powered a guest off -> the contract's `how_ended`
ENDS = {Effect.OFF_BY_GUEST: "guest", Effect.OFF_BY_FORCE: "forced", Effect.CRASHED: "crashed",
        Effect.SWITCHED_OFF: "forced"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """One change: when (Unix time in seconds), to which guest, and the caller's mark, if any."""

    at: float
    uuid: str
    effect: Effect
    mark: str
