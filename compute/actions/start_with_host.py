"""Start a guest that was shut down with its host, now that the host is back."""

from __future__ import annotations

from dataclasses import replace

from compute.hosts import guest_batches, guest_shutdown
from compute.hosts.guest_batches import BatchParams
from compute.operations import journal
from compute.operations.action import Role, ServerAction, StepContext, StepSpec
from compute.state import Move
from compute.virt.base import PowerState


class StartWithHost(ServerAction[BatchParams]):
    """Opened by `guest_shutdown.start_guests`. Guests that went down last start first."""

    name = "start"
    role = Role.START_WITH_HOST
    move = guest_shutdown.COMES_UP
    steps = (StepSpec("power_on", "compute_host_startup"),)

    def move_for(self, params: BatchParams) -> Move:
        """Return the move for the state the server had when its host came back."""
        return guest_shutdown.STAYS if params.stays else guest_shutdown.COMES_UP

    def power_on(self, run: StepContext[BatchParams]) -> None:
        """Power the guest on in its turn. A running guest is success. Raises StepWaiting."""
        if not run.params.begun:
            self._begin(run)
        run.hypervisor.power_on(run.instance.as_guest())
        run.note("started again with its host")

    def record_step(self, run: StepContext[BatchParams], power_state: PowerState | None) -> None:
        """Wake the steps whose turn may have come."""
        guest_batches.wake(run.step.host, run.action.key)

    def abandon(self, run: StepContext[BatchParams], error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server off, with a fault, and wake the steps whose turn may have come."""
        guest_batches.wake(run.step.host, run.action.key)
        super().abandon(run, error, power_state)

    def _begin(self, run: StepContext[BatchParams]) -> None:
        """Take the turn. Raises StepWaiting when it has not come."""
        with run.fenced(), guest_batches.lock(run.step.host):
            come = guest_batches.is_turn(run.step, run.action)
            if come:
                journal.change_params(run.action, BatchParams, lambda params: replace(params, begun=True))
            else:
                waits = guest_batches.wait(run.step, guest_batches.WAITS, guest_batches.AGAIN)
        if not come:
            raise waits
