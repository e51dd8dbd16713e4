"""Let a paused server run on."""

from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Unpause(ServerAction):
    """Paused -> active."""

    key = name = "unpause"
    policy = "os_compute_api:os-pause-server:unpause"
    move = Move(frozenset({VmState.PAUSED}), TaskState.UNPAUSING, VmState.ACTIVE)
    steps = (StepSpec("unpause", "compute_unpause_instance"),)

    def unpause(self, run: StepContext) -> None:
        """Unpause the guest. A running guest is success."""
        run.hypervisor.unpause(run.instance.uuid)
