"""Start a guest that was shut down with its host, now that the host is back."""

from __future__ import annotations

from typing import Any

from compute.hosts import guest_batches, guest_shutdown
from compute.operations import journal
from compute.operations.action import ServerAction, StepContext, StepSpec
from compute.state import Move
from compute.virt.base import PowerState


class StartWithHost(ServerAction):
    """Opened by `guest_shutdown.start_guests`. Guests that went down last start first."""

    name = "start"
    steps = (StepSpec("power_on", "compute_host_startup"),)

    def move_for(self, params: dict[str, Any]) -> Move:
        """Return the move for the state the server had when its host came back."""
        return guest_shutdown.STAYS if params.get("stays") else guest_shutdown.COMES_UP

    def power_on(self, run: StepContext) -> None:
        """Power the guest on in its turn. A running guest is success. Raises StepWaiting."""
        if "begun" not in run.params:
            self._begin(run)
        run.hypervisor.power_on(run.instance.as_guest())
        run.note("started again with its host")

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """Wake the steps whose turn may have come."""
        guest_batches.wake(run.step.host, run.action.key)

    def abandon(self, run: StepContext, error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server off, with a fault, and wake the steps whose turn may have come."""
        guest_batches.wake(run.step.host, run.action.key)
        super().abandon(run, error, power_state)

    def _begin(self, run: StepContext) -> None:
        """Take the turn. Raises StepWaiting when it has not come."""
        with run.fenced(), guest_batches.lock(run.step.host):
            come = guest_batches.is_turn(run.step, run.action)
            if come:
                journal.change_params(run.action, begun=True)
            else:
                waits = guest_batches.wait(run.step, guest_batches.WAITS, guest_batches.AGAIN)
        if not come:
            raise waits
