"""Shut a server down: ask its operating system first, pull the plug at the deadline."""

from compute import grace
from compute.lifecycle import Run, ServerAction, StepSpec
from compute.state import Move, TaskState, VmState


class Stop(ServerAction):
    """Active (or ERROR) -> stopped."""

    key, name = "os-stop", "stop"
    policy = "os_compute_api:servers:stop"
    move = Move(frozenset({VmState.ACTIVE, VmState.ERROR}), TaskState.POWERING_OFF, VmState.STOPPED)
    steps = (StepSpec("power_off", "compute_stop_instance"),)

    def power_off(self, run: Run) -> None:
        """Run again after a restart, the guest gets what is left of its time and no more."""
        run.note(grace.shut_down(run))
