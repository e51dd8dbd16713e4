"""Save a server's memory to disk and power it off."""

from compute.contract import bare_metal
from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Suspend(ServerAction):
    """Active -> suspended."""

    key = name = "suspend"
    policy = "os_compute_api:os-suspend-server:suspend"
    unsupported_on_bare_metal = bare_metal.CANNOT_PAUSE
    move = Move(frozenset({VmState.ACTIVE}), TaskState.SUSPENDING, VmState.SUSPENDED)
    steps = (StepSpec("suspend", "compute_suspend_instance"),)

    def suspend(self, run: StepContext) -> None:
        """Suspend the guest. A guest whose memory is saved is success."""
        run.hypervisor.suspend(run.instance.uuid)
