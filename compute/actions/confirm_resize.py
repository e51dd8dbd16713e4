"""Confirm a resize or a cold migration: the server stays on its new host, in its new size."""

from __future__ import annotations

from compute.migration import cold, moves
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, ActionResponse, On, Role, ServerAction, StepContext, StepSpec
from compute.placement import claims
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState


class ConfirmResize(ServerAction[cold.FinishedMoveParams]):
    """Resized -> what it was before the resize or the cold migration."""

    key = name = "confirmResize"
    role = Role.CONFIRM_RESIZE
    policy = "os_compute_api:servers:confirm_resize"
    move = Move(frozenset({VmState.RESIZED}), TaskState.RESIZE_CONFIRMING)
    steps = (
        StepSpec("cleanup_source", "compute_confirm_resize", On.SOURCE, no_return=True),
        StepSpec("update_quota", "conductor_confirm_resize", On.CONDUCTOR, OPS),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> cold.FinishedMoveParams:
        """Return the params of the move to confirm. Raises BadRequest when no move waits for it."""
        return cold.confirm_params(instance)

    def answer(self, params: cold.FinishedMoveParams, asked: ActionRequest) -> ActionResponse:
        """Return 204 without a body."""
        return ActionResponse(204)

    def cleanup_source(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Remove what the source has kept for a revert."""
        moves.remove_stale(run, run.params.source)

    def update_quota(self, run: StepContext[cold.FinishedMoveParams]) -> None:
        """Count the new size in the quota usage. Runs on a conductor, which has access to the global database."""
        cold.update_quota(run, without=run.params.move)

    def record_step(self, run: StepContext[cold.FinishedMoveParams], power_state: PowerState | None) -> None:
        """Release the allocation on the source; after `update_quota` finish the server's move."""
        if run.runs(self.cleanup_source):
            claims.release(run.instance.uuid, run.params.source_node)
        else:
            cold.record_confirmed_or_reverted(run, "confirmed")

    def complete(self, run: StepContext[cold.FinishedMoveParams], power_state: PowerState | None) -> None:
        """Change nothing: `record_step` has recorded the end."""
