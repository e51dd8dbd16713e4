"""Shut a server down: ask its operating system first, pull the plug at the deadline."""

from __future__ import annotations

from typing import Any

from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionRequest, ServerAction, StepContext, StepSpec
from compute.shutdown import grace, options
from compute.state import Move, TaskState, VmState

FROM = frozenset({VmState.ACTIVE, VmState.ERROR})
SOFT = Move(FROM, TaskState.POWERING_OFF, VmState.STOPPED)
HARD = Move(FROM, TaskState.POWERING_OFF, VmState.STOPPED, over=frozenset({TaskState.POWERING_OFF}))


class Stop(ServerAction):
    """Active (or ERROR) -> stopped. HARD also ends the wait of a stop that is under way."""

    key, name = "os-stop", "stop"
    policy = "os_compute_api:servers:stop"
    body = options.add_to_schema()
    move = SOFT
    steps = (StepSpec("power_off", "compute_stop_instance"),)

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """How long the guest has, if the request says so."""
        return options.asked(asked.body)

    def move_for(self, params: dict[str, Any]) -> Move:
        """By what was asked."""
        return HARD if params.get(grace.ASKED) == 0 else SOFT

    def begin(self, instance: Instance, asked: ActionRequest, params: dict[str, Any]) -> None:
        """A stop that is preempted and that nobody began is cancelled; one that waits hears how it ended."""
        super().begin(instance, asked, params)
        if self.move_for(params) is HARD:
            registry.cancel_open(instance, "preempted by a hard stop")

    def power_off(self, run: StepContext) -> None:
        """Run again after a restart, the guest gets what is left of its time and no more."""
        run.note(grace.shut_down(run))
