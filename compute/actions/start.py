"""Power a server on."""

from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Start(ServerAction):
    """Stopped -> active."""

    key, name = "os-start", "start"
    policy = "os_compute_api:servers:start"
    move = Move(frozenset({VmState.STOPPED}), TaskState.POWERING_ON, VmState.ACTIVE)
    steps = (StepSpec("power_on", "compute_start_instance"),)

    def power_on(self, run: StepContext) -> None:
        """Power the guest on. A running guest is success: a start that runs twice never resets the guest."""
        run.hypervisor.power_on(run.instance.as_guest())
