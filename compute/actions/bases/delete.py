"""What every end of a server has in common, at once or after a while in which it can be restored.

What it means for the quota is in `compute/servers/deletion.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from cells.models import InstanceMapping
from compute import state
from compute.errors import StateConflict
from compute.migration import cold, moves
from compute.models import Instance, InstanceAction
from compute.operations import journal, registry
from compute.operations.action import (
    OPS,
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

FORGET_SOURCE = StepSpec("forget_source", "compute_forget_source", On.SOURCE, OPS)  # of one that was resized


class Ending(ServerAction):
    """Preempts what runs. A server that lives on after all is counted again before it can be asked anything."""

    name = "delete"
    policy = "os_compute_api:servers:delete"
    clean_up = StepSpec("count_again", "conductor_keep_instance", on=On.CONDUCTOR)
    needs_host = False
    move: ClassVar[Move]

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Deleting a server that is being deleted is success, and nothing more happens."""
        goes_on = instance.task_state is not None and instance.task_state not in self.move.over
        if instance.deleted or goes_on:
            deletion.shorten_wait(instance, asked.body)
            return ActionResponse(204)
        return super().submit(instance, asked)

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """How long the guest has."""
        return deletion.shutdown_options(instance, asked.body)

    def begin(self, instance: Instance, asked: ActionRequest, params: dict[str, Any]) -> None:
        """What is queued for the server is cancelled; what runs ends first, then this runs."""
        try:
            super().begin(instance, asked, params)
        except StateConflict:
            params["late"] = True  # another delete was faster
            deletion.shorten_wait(instance, asked.body)
            return
        registry.cancel_open(instance, "the server was deleted")
        params |= self.known_of(instance)

    def known_of(self, instance: Instance) -> dict[str, Any]:
        """What it left elsewhere when it was resized; also of one in ERROR, after a delete that failed."""
        waits = cold.last(instance)
        if waits is None:
            return {}
        return {"move": waits.pk, "source": waits.params["source"], "source_node": waits.params["source_node"]}

    def record(self, instance: Instance, asked: ActionRequest, params: dict[str, Any]) -> Any:
        """Nothing, when another delete was faster."""
        return None if params.get("late") else super().record(instance, asked, params)

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """No body."""
        return ActionResponse(204)

    def shut_down(self, run: StepContext) -> None:
        """With the grace it was given. It goes, whatever its guest does."""
        try:
            run.note(grace.shut_down(run))
        except HypervisorUnavailable:
            raise
        except VirtError as error:
            run.note(f"could not be shut down: {error}")

    def forget_source(self, run: StepContext) -> None:
        """What its old host has kept for a revert."""
        moves.destroy_stale(run, run.params["source"])

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """A resize whose server is deleted is as good as confirmed."""
        if run.step.name == "forget_source" and run.instance.host != run.params["source"]:
            claims.release(run.instance.uuid, run.params["source_node"])
            move = InstanceAction.objects.get(pk=run.params["move"])
            if "ended" not in move.params:
                journal.change_params(move, ended="confirmed")

    def next_step(self, done: str, run: StepContext) -> StepSpec | None:
        """Only a server that was resized has left something on another host."""
        return super().next_step(done, run) if "source" in run.params else None

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """All is recorded with its end; or it failed, and lives on, unless a newer delete has it."""
        if run.step.name != "count_again":
            return
        ended = run.action.steps.filter(name=self.steps[0].name, state__in=("failed", "cancelled")).last()
        why = ended.details if ended else "the delete was taken back"
        with suppress(StateConflict):
            state.abandon(run.instance, self.move, fault_of(VirtError(why)))
        journal.close_action(run.action, outcome=why, failed=True)

    def after_failure(self, run: StepContext, error: BaseException) -> StepSpec | None:
        """A server that lives on is counted again before it can be asked anything."""
        return self.clean_up if run.step.name == self.steps[0].name else None

    def count_again(self, run: StepContext) -> None:
        """On a conductor, which may touch the global side. A newer delete of the same server wins."""
        instance = run.instance
        newer = InstanceAction.objects.filter(server_id=instance.uuid, key__in=deletion.KEYS, pk__gt=run.action.pk)
        stays = self.move.failed or instance.vm_state
        with run.fenced():
            if not instance.deleted and stays != VmState.SOFT_DELETED and not newer.exists():
                InstanceMapping.objects.filter(pk=instance.uuid).update(queued_for_delete=False)
