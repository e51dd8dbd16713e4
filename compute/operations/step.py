"""How an action declares its steps: where each runs, on which queue, and how a restart or a drain treats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from compute.operations import dispatch
from compute.virt.shutdown_timer import ShutdownTimer

REQUESTS, OPS = dispatch.REQUESTS, dispatch.OPS


class StepWaiting(Exception):
    """Raised by a step that has to wait, and needs no thread for it.

    `timer`: the guest's shutdown timer; None when something else wakes the step. `seconds`: then it runs again in any
    case. `recorded`: its row has the wait already (`hosts/guest_batches.py`). `then` is called when the wait is in its
    row.
    """

    def __init__(
        self, why: str, timer: ShutdownTimer | None = None, *, seconds: float | None = None, recorded: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(why)
        self.why, self.timer, self.seconds, self.recorded, self.then = why, timer, seconds, recorded, then


class On(StrEnum):
    """Where a step runs."""

    HOST = "host"  # the server's host
    SOURCE = "source"  # the host a server leaves: `source` in the action's params
    DEST = "destination"  # the host a server goes to: `destination` in the action's params
    CONDUCTOR = "conductor"  # any conductor of the cell


class OnRestart(StrEnum):
    """What a restarted worker does with a step that its dead incarnation left running."""

    RERUN = "rerun"  # the step is idempotent: run it again
    UNDO = "undo"  # undo what the action did so far, and end it with a fault
    FAIL = "fail"  # end the action with a fault the user can read

    @property
    def meaning(self) -> str:
        """The rule in words, for messages."""
        return {"rerun": "run again", "undo": "undone", "fail": "ended with a fault"}[self.value]


class OnDrain(StrEnum):
    """What a draining host does with a step that no process has begun: the quickest safe point."""

    WAIT = "wait"  # it stays queued until the host takes work again
    ELSEWHERE = "elsewhere"  # the action's `elsewhere` step looks for another host
    CANCEL = "cancel"  # the action ends with a fault, and nothing has happened to the server


class Role(StrEnum):
    """What lower packages, which cannot import the class of an action, open it as or look for it as."""

    LIVE_MIGRATION = "live-migration"  # this and the next three: the types of os-migrations
    RESIZE = "resize"
    COLD_MIGRATION = "migration"
    EVACUATION = "evacuation"
    CONFIRM_RESIZE = "confirm_resize"
    DELETE = "delete"
    SOFT_DELETE = "soft_delete"
    REMOVE_STALE_GUEST = "remove_stale_guest"
    SHUT_DOWN_WITH_HOST = "shut_down_with_host"
    START_WITH_HOST = "start_with_host"
    RESTORE_POWER_STATE = "restore_power_state"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """The declaration of one step: the method of the action that does the work, and where it runs.

    `undo` names the method that undoes it, in the same place, on the ops queue; it runs for steps that were begun,
    however they ended. After a `no_return` step nothing is undone any more. A `long` step takes as long as a disk or a
    memory takes to copy: on the ops queue of a host only STILLWATER_LONG_SLOTS of them run at once, so that other
    steps find a thread. An undo step is never long. `known_since` is the first service version
    (`compute/operations/versions.py`) whose workers know the step; its undo step is as old.
    """

    name: str
    event: str  # the name Nova's clients see in os-instance-actions
    on: On = On.HOST
    queue: str = REQUESTS
    on_restart: OnRestart = OnRestart.RERUN
    on_drain: OnDrain = OnDrain.WAIT
    undo: str = ""
    no_return: bool = False
    long: bool = False
    status: str = ""  # of the migration in os-migrations while this step is open; "": pre-migrating
    known_since: int = 1

    @property
    def undone_by(self) -> StepSpec | None:
        """The undo step; None when there is nothing to undo."""
        if not self.undo:
            return None
        return StepSpec(self.undo, f"{self.event}_undo", self.on, OPS, known_since=self.known_since)
