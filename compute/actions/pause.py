"""Freeze a server's CPUs; its memory stays on the host."""

from compute.contract import bare_metal
from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Pause(ServerAction):
    """Active -> paused."""

    key = name = "pause"
    policy = "os_compute_api:os-pause-server:pause"
    unsupported_on_bare_metal = bare_metal.CANNOT_PAUSE
    move = Move(frozenset({VmState.ACTIVE}), TaskState.PAUSING, VmState.PAUSED)
    steps = (StepSpec("pause", "compute_pause_instance"),)

    def pause(self, run: StepContext) -> None:
        """Pause the guest. A paused guest is success."""
        run.hypervisor.pause(run.instance.uuid)
