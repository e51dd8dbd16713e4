"""Delete a server for good, from every state and whatever is in progress."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from cells.context import current_alias
from compute import state
from compute.actions.bases import delete
from compute.actions.delete_shelved_image import DeleteShelvedImage, DeleteShelvedImageParams
from compute.errors import StateConflict
from compute.hosts import fenced
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal
from compute.operations.action import ActionRequest, Role, StepContext, StepSpec
from compute.placement import claims
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

BATCH = 500
RECLAIM = Move(frozenset({VmState.SOFT_DELETED}), TaskState.DELETING)


class Delete(delete.DeleteBase[delete.DeleteParams]):
    """Any state -> deleted. Preempts the action in progress; a server without a host is deleted at once."""

    role = Role.DELETE
    move = Move(
        state.LIVING, TaskState.DELETING, failed=VmState.ERROR,  # can be deleted again
        over=frozenset(TaskState) - {TaskState.DELETING},
    )  # fmt: skip
    steps = (StepSpec("terminate", "compute_terminate_instance", no_return=True), delete.CLEANUP_SOURCE)

    def reclaim(self, instance: Instance, asked: ActionRequest) -> bool:
        """Delete a soft-deleted server; False when a restore or another delete took it at the same moment."""
        try:
            with transaction.atomic(using=current_alias()):
                state.begin(instance, RECLAIM)
                self.record(instance, asked, self.with_source(delete.DeleteParams(shutdown_timeout=0), instance))
        except StateConflict:
            return False
        return True

    def record(self, instance: Instance, asked: ActionRequest, params: delete.DeleteParams) -> InstanceAction:
        """Journal the action; delete the server here and now when it has no host, or a fenced one."""
        if instance.host and instance.host not in fenced.hosts():
            return super().record(instance, asked, params)
        action = self.open_row(instance, asked, params)
        _end_at_once(instance, action)
        return action

    def terminate(self, run: StepContext[delete.DeleteParams]) -> None:
        """Shut the guest down, then destroy it. A missing guest is success."""
        self.shut_down(run)
        run.hypervisor.destroy(run.instance.uuid)

    def record_step(self, run: StepContext[delete.DeleteParams], power_state: PowerState | None) -> None:
        """Mark the server as deleted after `terminate` and release its allocations; the row stays as history."""
        if run.runs(self.terminate):
            mark_deleted_and_release(run.instance)
        super().record_step(run, power_state)


def mark_deleted_and_release(instance: Instance) -> None:
    """Mark the server as deleted, release its allocations, delete its shelved image. In the caller's transaction."""
    state.mark_deleted(instance)
    claims.release(instance.uuid)
    if instance.shelved_image_id:
        params = DeleteShelvedImageParams(image_id=instance.shelved_image_id)
        DeleteShelvedImage().record(instance, ActionRequest.of_cloud(instance), params)


def end_waiting() -> int:
    """End the deletes that wait for hosts which are fenced by now, in the targeted cell; return how many."""
    waiting = Step.objects.select_related("action").open(
        host__in=fenced.hosts(), action__key=Delete.__name__, name=Delete.steps[0].name
    )
    ended = 0
    for step in waiting[:BATCH]:
        instance = Instance.objects.get(uuid=step.server_id)
        with transaction.atomic(using=current_alias()):
            mine = Step.objects.open(pk=step.pk)
            why = f"host {step.host} is gone"
            if mine.update(state=Step.State.CANCELLED, finished_at=timezone.now(), details=why):
                _end_at_once(instance, step.action)
                ended += 1
    return ended


def _end_at_once(instance: Instance, action: InstanceAction) -> None:
    """Record the server as deleted; fenced hosts remove what they have of it when they are back."""
    host, left = instance.host, set()
    if host:
        left = fenced.abort_all_steps(instance) | ({delete.DeleteParams.load(action.params).source} - {""})
    mark_deleted_and_release(instance)
    for name in left:
        fenced.schedule_cleanup(instance, name)
    then = f"{host}, which is gone, removes what it has when it is back" if host else "it had no host"
    journal.close_action(action, outcome=f"deleted; {then}")
