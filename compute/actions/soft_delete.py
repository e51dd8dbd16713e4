"""Delete a server so that it can be restored for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cells import database_clock
from compute import state
from compute.actions.bases import delete
from compute.migration import cold
from compute.models import Instance
from compute.operations.action import Role, StepContext, StepSpec
from compute.servers import deletion
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftDeleteParams(delete.DeleteParams):
    """The parameters of a soft delete."""

    was: VmState | None = None  # the state that a restore restores; None when an earlier soft delete recorded it


class SoftDelete(delete.DeleteBase[SoftDeleteParams]):
    """Any state -> soft-deleted: off, and kept. Preempts the action in progress; a repeat restarts the time."""

    role = Role.SOFT_DELETE
    move = Move(
        state.LIVING, TaskState.SOFT_DELETING, VmState.SOFT_DELETED, over=frozenset(TaskState) - deletion.GOING,
    )  # fmt: skip
    steps = (StepSpec("power_off", "compute_soft_delete_instance", no_return=True), delete.CLEANUP_SOURCE)

    def with_source(self, params: SoftDeleteParams, instance: Instance) -> SoftDeleteParams:
        """Add also the state the server had, for a restore."""
        params, was = super().with_source(params, instance), VmState(instance.vm_state)
        if was is VmState.SOFT_DELETED:
            return params
        waits = cold.awaiting_confirmation(instance) if was is VmState.RESIZED else None
        return replace(params, was=cold.ColdMoveParams.load(waits.params).was if waits is not None else was)

    def power_off(self, run: StepContext[SoftDeleteParams]) -> None:
        """Shut the guest down with its grace period. A guest that is off is success."""
        run.note(grace.shut_down(run))

    def record_step(self, run: StepContext[SoftDeleteParams], power_state: PowerState | None) -> None:
        """Finish the move after `power_off`: from now on the server can be restored."""
        if run.runs(self.power_off):
            state.finish(run.instance, self.move, power_state, soft_deleted_at=database_clock.now())
        super().record_step(run, power_state)
