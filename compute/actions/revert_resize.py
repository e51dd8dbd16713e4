"""Revert a resize or a cold migration: the server goes back to its source, in its old size."""

from __future__ import annotations

from compute import state
from compute.migration import cold, moves
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import OPS, ActionRequest, On, ServerAction, StepContext, StepSpec
from compute.placement import claims
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState, VirtError


class RevertResize(ServerAction[cold.FinishedMoveParams]):
    """Resized -> what it was before the resize or the cold migration, on its source."""

    key = name = "revertResize"
    policy = "os_compute_api:servers:revert_resize"
    move = Move(frozenset({VmState.RESIZED}), TaskState.RESIZE_REVERTING)
    steps = (
        StepSpec("power_off", "compute_revert_resize", undo="power_on_again"),
        StepSpec(
            "revert_migration", "compute_finish_revert_resize", On.SOURCE, OPS, undo="cleanup_source", no_return=True
        ),
        StepSpec("cleanup_destination", "compute_revert_resize_cleanup", On.DEST, OPS),
        StepSpec("update_quota", "conductor_revert_resize", On.CONDUCTOR, OPS),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> cold.FinishedMoveParams:
        """Return the params of the move to revert. Raises BadRequest when no move waits for it."""
        return cold.confirm_params(instance)

    def power_off(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Shut the guest down with its grace period. The server stays here until `revert_migration` is done."""
        run.note(grace.shut_down(run))

    def power_on_again(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Power the guest on again if it was on: the source cannot take it back."""
        if run.params.was == VmState.ACTIVE and not run.instance.deleted:
            run.hypervisor.power_on(run.instance.as_guest())

    def revert_migration(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Restore the guest on the source as it was when it left, and power it on if it was on."""
        if run.instance.deleted:
            return
        guest = cold.resized(run.instance, run.params.old).as_guest()
        run.hypervisor.revert_migration(guest)
        if run.params.was != VmState.ACTIVE:
            return
        try:
            run.hypervisor.power_on(guest)
        except VirtError as error:
            if error.retryable:
                raise
            run.note(f"it is back, and could not be powered on: {error}")  # the recorded power state shows it

    def cleanup_source(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Remove the guest from the source again: the server lives where the record says.

        Another action took the server after the guest was back and before that was recorded.
        """
        if run.hypervisor.power_state(run.instance.uuid) != PowerState.NOSTATE:
            moves.destroy_stale(run, run.params.source)

    def cleanup_destination(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Destroy what is left on the destination."""
        moves.destroy_stale(run, run.params.destination)

    def after_failure(self, run: StepContext[cold.FinishedMoveParams], error: BaseException) -> StepSpec | None:
        """Return `update_quota` after a failed `cleanup_destination`: the quota does not wait for its cleanup."""
        return self.steps[-1] if run.runs(self.cleanup_destination) else None

    def update_quota(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Count the old size in the quota usage. Runs on a conductor, which has access to the global database."""
        cold.update_quota(run, without=run.params.move)

    def record_step(self, run: StepContext[cold.FinishedMoveParams], power_state: PowerState | None) -> None:
        """Record the source as the host after `revert_migration`, and free the server for the next request."""
        if not run.runs(self.revert_migration):
            return
        params = run.params
        zone = params.source_zone or run.instance.availability_zone  # older versions did not record it
        where = {"host": params.source, "node": params.source_node, "availability_zone": zone}
        state.set_location(run.instance, **where, **params.old)
        claims.release(run.instance.uuid, params.destination_node)
        registry.follow(run.instance, params.destination)
        cold.record_confirmed_or_reverted(run, "reverted", power_state)

    def complete(self, run: StepContext[cold.FinishedMoveParams], power_state: PowerState | None) -> None:
        """Change nothing: `record_step` has recorded the end."""
