"""Take a server out of rescue: it boots its own disk again."""

from __future__ import annotations

from compute.operations.action import OPS, ServerAction, StepContext, StepSpec
from compute.shutdown import temporary_power_off
from compute.state import Move, TaskState, VmState
from compute.virt.base import GuestNotFound, VirtError


class Unrescue(ServerAction[temporary_power_off.TemporaryPowerOffParams]):
    """Rescued -> active."""

    key = name = "unrescue"
    policy = "os_compute_api:os-unrescue"
    move = Move(frozenset({VmState.RESCUED}), TaskState.UNRESCUING, VmState.ACTIVE)
    steps = (
        StepSpec("power_off", "compute_unrescue_power_off", undo="power_on_again"),
        StepSpec("unrescue", "compute_unrescue_instance", queue=OPS),
    )

    def power_off(self, run: StepContext[temporary_power_off.TemporaryPowerOffParams]) -> None:
        """Shut the rescue system down with its grace period, so that its writes to the server's disk are kept."""
        temporary_power_off.turn_off(run)

    def unrescue(self, run: StepContext[temporary_power_off.TemporaryPowerOffParams]) -> None:
        """Take the guest out of rescue and power it on. A final failure to power on is only noted."""
        guest = run.instance.as_guest()
        run.hypervisor.unrescue(guest)
        try:
            run.hypervisor.power_on(guest)
        except VirtError as error:
            if error.retryable or isinstance(error, GuestNotFound):
                raise
            run.note(f"it is out of rescue, and could not be powered on: {error}")  # the recorded power state shows it

    def power_on_again(self, run: StepContext[temporary_power_off.TemporaryPowerOffParams]) -> None:
        """Power the rescue system on again if it was on: the server stays in rescue."""
        temporary_power_off.turn_on_again(run)
