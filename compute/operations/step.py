"""How an action declares its steps: where each runs, on which lane, and what becomes of it in bad weather."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from compute.operations import dispatch
from compute.virt.shutdown_timer import ShutdownTimer

REQUESTS, OPS = dispatch.REQUESTS, dispatch.OPS
SHUTDOWN_TIMEOUT = "shutdown_timeout"  # of a request, seconds: in the params of its action, 0 is HARD


class StepWaiting(Exception):
    """A step has to wait, and needs no thread for it. `clock`: the guest's; None: it is woken by something else.

    `seconds`: then it goes on all the same. `parked`: its row says so already (`hosts/guest_batches.py`). `then` is
    called when its row says so.
    """

    def __init__(
        self, why: str, timer: ShutdownTimer | None = None, *, seconds: float | None = None, parked: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(why)
        self.why, self.timer, self.seconds, self.parked, self.then = why, timer, seconds, parked, then


class On(StrEnum):
    """Where a step runs."""

    HOST = "host"  # the server's host
    SOURCE = "source"  # the host a server leaves: `source` in the action's params
    DEST = "destination"  # the host a server goes to: `destination` in the action's params
    CONDUCTOR = "conductor"  # any conductor of the cell


class OnRestart(StrEnum):
    """What a restarted worker does with a step its last life left running."""

    RERUN = "rerun"  # the step is idempotent: run it again
    UNDO = "undo"  # take back what the action did so far, and end it with a fault
    FAIL = "fail"  # end the action with a fault the user can read

    @property
    def meaning(self) -> str:
        """For people."""
        return {"rerun": "run again", "undo": "undone", "fail": "ended with a fault"}[self.value]


class OnDrain(StrEnum):
    """What a host that begins to drain does with a step nobody has begun: the quickest safe point."""

    WAIT = "wait"  # it stays queued until the host takes work again
    ELSEWHERE = "elsewhere"  # the action's `elsewhere` step looks for another host
    CANCEL = "cancel"  # the action ends with a fault, and nothing has happened to the server


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One part of an action: the method of the action that does it, and where.

    `undo` names the method that takes it back, in the same place, on the ops lane; it runs for steps that
    were begun, however they ended. After a step of `no_return` nothing is undone any more. A `long` step takes
    as long as a disk or a memory takes to copy: on the ops lane of a host only STILLWATER_LONG_SLOTS of them run
    at once, so that the others find a thread. An undo is none.
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

    @property
    def undone_by(self) -> StepSpec | None:
        """The step that takes this one back."""
        if not self.undo:
            return None
        return StepSpec(self.undo, f"{self.event}_undo", self.on, OPS)
