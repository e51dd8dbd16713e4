"""What Delete and SoftDelete have in common.

The quota and the grace period of a delete are in `compute/servers/deletion.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from cells.models import InstanceMapping
from compute import state
from compute.errors import StateConflict
from compute.migration import cold, moves
from compute.models import Instance, InstanceAction
from compute.operations import journal, registry
from compute.operations.action import (
    OPS,
    ActionParams,
    ActionRequest,
    ActionResponse,
    On,
    ServerAction,
    StepContext,
    StepSpec,
    fault_of,
)
from compute.placement import claims
from compute.servers import deletion
from compute.shutdown import grace
from compute.state import Move, VmState
from compute.virt.base import HypervisorUnavailable, PowerState, VirtError

CLEANUP_SOURCE = StepSpec("cleanup_source", "compute_forget_source", On.SOURCE, OPS)  # only for a resized server


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteParams(ActionParams):
    """The parameters of a delete. `source`: where a resized server has left something; "" for other servers."""

    move: int = 0  # id of the resize's InstanceAction
    source_node: str = ""


D = TypeVar("D", bound=DeleteParams)


class DeleteBase(ServerAction[D]):
    """Base class of Delete and SoftDelete: a delete preempts the action in progress.

    When a delete fails, the step `restore_quota` returns the server to the quota usage before it takes requests again.
    """

    name = "delete"
    policy = "os_compute_api:servers:delete"
    clean_up = StepSpec("restore_quota", "conductor_keep_instance", on=On.CONDUCTOR)
    needs_host = False
    move: ClassVar[Move]

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Record the delete. A server that is deleted or being deleted is success; HARD ends its grace period."""
        goes_on = instance.task_state is not None and instance.task_state not in self.move.over
        if instance.deleted or goes_on:
            deletion.shorten_wait(instance, asked.body)
            return ActionResponse(204)
        return super().submit(instance, asked)

    def prepare(self, instance: Instance, asked: ActionRequest) -> D:
        """Return the grace period of the guest."""
        return self.params_type(shutdown_timeout=deletion.shutdown_timeout(instance, asked.body))

    def begin(self, instance: Instance, asked: ActionRequest, params: D) -> D | None:
        """Take the server and cancel its queued steps; a step that runs ends before this delete begins.

        Return None, and raise nothing, when another delete won the race.
        """
        try:
            super().begin(instance, asked, params)
        except StateConflict:
            deletion.shorten_wait(instance, asked.body)
            return None
        registry.cancel_open(instance, "the server was deleted")
        return self.with_source(params, instance)

    def with_source(self, params: D, instance: Instance) -> D:
        """Add the source of a resize to the params; also for a server in ERROR after a failed delete."""
        waits = cold.awaiting_confirmation(instance)
        if waits is None:
            return params
        move = cold.ColdMoveParams.load(waits.params)
        return replace(params, move=waits.pk, source=move.source, source_node=move.source_node)

    def answer(self, params: D, asked: ActionRequest) -> ActionResponse:
        """Return 204 without a body."""
        return ActionResponse(204)

    def shut_down(self, run: StepContext[D]) -> None:
        """Shut the guest down with its grace period. A guest that cannot be shut down does not stop the delete.

        Raises HypervisorUnavailable.
        """
        try:
            run.note(grace.shut_down(run))
        except HypervisorUnavailable:
            raise
        except VirtError as error:
            run.note(f"could not be shut down: {error}")

    def cleanup_source(self, run: StepContext[D]) -> None:
        """Destroy what the source host of a resize has kept for a revert."""
        moves.destroy_stale(run, run.params.source)

    def record_step(self, run: StepContext[D], power_state: PowerState | None) -> None:
        """Release the source's allocation after `cleanup_source`, and record the resize as confirmed."""
        if run.runs(self.cleanup_source) and run.instance.host != run.params.source:
            claims.release(run.instance.uuid, run.params.source_node)
            move = InstanceAction.objects.get(pk=run.params.move)
            journal.change_params(
                move, cold.ColdMoveParams, lambda params: replace(params, ended=params.ended or "confirmed")
            )

    def next_step(self, done: str, run: StepContext[D]) -> StepSpec | None:
        """Return `cleanup_source` only for a resized server: other servers left nothing on another host."""
        return super().next_step(done, run) if run.params.source else None

    def complete(self, run: StepContext[D], power_state: PowerState | None) -> None:
        """Close a failed delete after `restore_quota`: free the server with a fault, unless a newer delete has it."""
        if not run.runs(self.restore_quota):
            return
        ended = run.action.steps.filter(name=self.steps[0].name, state__in=("failed", "cancelled")).last()
        why = ended.details if ended else "the delete was taken back"
        with suppress(StateConflict):
            state.abandon(run.instance, self.move, fault_of(VirtError(why)))
        journal.close_action(run.action, outcome=why, failed=True)

    def after_failure(self, run: StepContext[D], error: BaseException) -> StepSpec | None:
        """Return `restore_quota` when the first step fails."""
        return self.clean_up if run.step.name == self.steps[0].name else None

    def restore_quota(self, run: StepContext[D]) -> None:
        """Count the server in the quota usage again, unless a newer delete has it.

        Runs on a conductor, which has access to the global database.
        """
        instance = run.instance
        newer = InstanceAction.objects.filter(server_id=instance.uuid, key__in=deletion.keys(), pk__gt=run.action.pk)
        stays = self.move.failed or instance.vm_state
        with run.fenced():
            if not instance.deleted and stays != VmState.SOFT_DELETED and not newer.exists():
                InstanceMapping.objects.filter(pk=instance.uuid).update(queued_for_delete=False)
