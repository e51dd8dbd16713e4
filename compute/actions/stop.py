"""Shut a server down: ask its operating system first, force it off at the deadline."""

from __future__ import annotations

from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionParams, ActionRequest, ServerAction, StepContext, StepSpec
from compute.shutdown import grace, options
from compute.state import Move, TaskState, VmState

FROM = frozenset({VmState.ACTIVE, VmState.ERROR})
SOFT = Move(FROM, TaskState.POWERING_OFF, VmState.STOPPED)
HARD = Move(FROM, TaskState.POWERING_OFF, VmState.STOPPED, over=frozenset({TaskState.POWERING_OFF}))


class Stop(ServerAction):
    """Active (or ERROR) -> stopped. HARD also ends the grace period of a stop that is in progress."""

    key, name = "os-stop", "stop"
    policy = "os_compute_api:servers:stop"
    body = options.add_to_schema()
    moves = {"SOFT": SOFT, "HARD": HARD}
    steps = (StepSpec("power_off", "compute_stop_instance"),)

    def prepare(self, instance: Instance, asked: ActionRequest) -> ActionParams:
        """Return the grace period, if the request sets one."""
        return ActionParams(shutdown_timeout=options.asked(asked.body))

    def move_for(self, params: ActionParams) -> Move:
        """Return the move of the requested kind."""
        return HARD if params.shutdown_timeout == 0 else SOFT

    def begin(self, instance: Instance, asked: ActionRequest, params: ActionParams) -> ActionParams | None:
        """Take the server. HARD cancels a queued stop; a stop that waits for the guest learns how it ended."""
        begun = super().begin(instance, asked, params)
        if self.move_for(params) is HARD:
            registry.cancel_open(instance, "preempted by a hard stop")
        return begun

    def power_off(self, run: StepContext) -> None:
        """Shut the guest down. Run again after a restart, it gets the rest of its grace period and no more."""
        run.note(grace.shut_down(run))
