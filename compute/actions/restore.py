"""Restore a soft-deleted server."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from cells.models import InstanceMapping
from compute import state
from compute.actions.soft_delete import SoftDelete, SoftDeleteParams
from compute.migration import cold
from compute.models import Instance, InstanceAction
from compute.operations.action import OPS, ActionParams, ActionRequest, On, ServerAction, StepContext, StepSpec
from compute.placement import quota
from compute.servers import deletion
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

OFF = frozenset({VmState.STOPPED, VmState.SHELVED})
AS_IT_WAS = OFF | {VmState.RESCUED}  # as in Nova, a server that was in any other state is active afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreParams(ActionParams):
    """The parameters of a restore."""

    back: VmState = VmState.ACTIVE  # the state to restore


class Restore(ServerAction[RestoreParams]):
    """Soft-deleted -> active; a server that was stopped, shelved or rescued is so again."""

    key = name = "restore"
    policy = "os_compute_api:os-deferred-delete:restore"
    move = Move(frozenset({VmState.SOFT_DELETED}), TaskState.RESTORING, VmState.ACTIVE)
    steps = (
        StepSpec("update_quota", "conductor_restore_instance", On.CONDUCTOR, undo="revert_quota"),
        StepSpec("power_on", "compute_restore_instance", queue=OPS),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> RestoreParams:
        """Return the state to restore. Raises QuotaExceeded when the project has no room for the server."""
        if instance.vm_state != VmState.SOFT_DELETED:
            return RestoreParams()  # refused by its state
        quota.must_fit_if_uncounted(instance.project_id, instance.uuid, instance.vcpus, instance.memory_mb)
        soft = InstanceAction.objects.filter(
            server_id=instance.uuid, key=SoftDelete.__name__, params__has_key="was"
        )
        last = soft.order_by("-pk").first()
        was = SoftDeleteParams.load(last.params).was if last is not None else None
        return RestoreParams(back=was if was in AS_IT_WAS else VmState.ACTIVE)

    def move_for(self, params: RestoreParams) -> Move:
        """Return the move to the state the server had."""
        return Move(self.move.start, self.move.busy, params.back)

    def update_quota(self, run: StepContext[RestoreParams]) -> None:
        """Count the server in the quota usage again. Raises QuotaExceeded.

        Runs on a conductor, which has access to the global database.
        """
        with run.fenced(), transaction.atomic(using="default"):
            quota.recount_undeleted(run.instance.project_id, run.instance.uuid, cold.columns(run.instance))

    def power_on(self, run: StepContext[RestoreParams]) -> None:
        """Power the guest on, if the server was on. A running guest is success."""
        if run.params.back in OFF:
            run.note(f"it was {run.params.back}, and stays off")
        else:
            run.hypervisor.power_on(run.instance.as_guest())

    def complete(self, run: StepContext[RestoreParams], power_state: PowerState | None) -> None:
        """Finish the move; the conductor does not reclaim the server any more."""
        state.finish(run.instance, self.move_for(run.params), power_state, soft_deleted_at=None)

    def revert_quota(self, run: StepContext[RestoreParams]) -> None:
        """Flag the server as queued for delete again, if it is still soft-deleted, or deleted meanwhile.

        A server whose state an operator reset meanwhile stays in the quota usage.
        """
        with run.fenced():
            run.instance.refresh_from_db()
            if deletion.is_ended(run.instance):
                InstanceMapping.objects.filter(pk=run.instance.uuid).update(queued_for_delete=True)
