"""Resume a suspended server from its saved memory."""

from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Resume(ServerAction):
    """Suspended -> active."""

    key = name = "resume"
    policy = "os_compute_api:os-suspend-server:resume"
    move = Move(frozenset({VmState.SUSPENDED}), TaskState.RESUMING, VmState.ACTIVE)
    steps = (StepSpec("resume", "compute_resume_instance"),)

    def resume(self, run: StepContext) -> None:
        """Resume the guest. A running guest is success."""
        run.hypervisor.resume(run.instance.as_guest())
