"""Delete a server: from every state, whatever is going on."""

from __future__ import annotations

from typing import Any

from cells.models import InstanceMapping
from compute import actions, claims, journal, moving, moving_cold, state
from compute.errors import StateConflict
from compute.lifecycle import OPS, Answer, Asked, On, Run, ServerAction, StepSpec, fault_of
from compute.models import Instance, InstanceAction
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState, VirtError


class Delete(ServerAction):
    """Anything living -> deleted. Preempts what runs; a server without a host is gone at once."""

    name = "delete"
    policy = "os_compute_api:servers:delete"
    move = Move(state.LIVING, TaskState.DELETING, failed=VmState.ERROR)  # can be deleted again
    steps = (
        StepSpec("terminate", "compute_terminate_instance", no_return=True),
        StepSpec("forget_source", "compute_forget_source", On.SOURCE, OPS),  # of one that was resized
    )
    clean_up = StepSpec("count_again", "conductor_keep_instance", on=On.CONDUCTOR)
    needs_host = False

    def submit(self, instance: Instance, asked: Asked) -> Answer:
        """Deleting a server that is being deleted is success, and nothing more happens."""
        if instance.deleted or instance.task_state == TaskState.DELETING:
            return Answer(204)
        return super().submit(instance, asked)

    def begin(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> None:
        """What is queued for the server is cancelled; what runs ends first, then the delete runs."""
        try:
            state.preempt(instance, TaskState.DELETING)
        except StateConflict:
            params["late"] = True  # another delete was faster
            return
        actions.cancel_open(instance, "the server was deleted")
        waits = moving_cold.last(instance)  # also of one in ERROR, after a delete that failed
        params |= {"source": waits.params["source"]} if waits is not None else {}

    def record(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> Any:
        """Journal it, or do it here when no host has anything of it."""
        if params.get("late"):
            return None
        if instance.host:
            return super().record(instance, asked, params)
        action = journal.open_action(
            instance, name=self.name, key="Delete", request_id=asked.request_id,
            user_id=asked.caller.user_id, project_id=asked.caller.project_id, params=params,
        )  # fmt: skip
        bury(instance)
        journal.close_action(action, outcome="deleted; it had no host")
        return action

    def answer(self, params: dict[str, Any], asked: Asked) -> Answer:
        """No body."""
        return Answer(204)

    def terminate(self, run: Run) -> None:
        """Gone already is success."""
        run.hypervisor.destroy(run.instance.uuid)

    def forget_source(self, run: Run) -> None:
        """What its old host has kept for a revert."""
        moving.end_at(run, run.params["source"])

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """The row stays as history, and what it held of hosts is free."""
        if run.step.name == "terminate":
            bury(run.instance)

    def next_step(self, done: str, run: Run) -> StepSpec | None:
        """Only a server that was resized has left something on another host."""
        return super().next_step(done, run) if "source" in run.params else None

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """All is recorded with its end; or it failed, and lives on."""
        if run.step.name != "count_again":
            return
        failed = run.action.steps.filter(name="terminate", state="failed").last()
        why = failed.details if failed else "the delete was taken back"
        state.abandon(run.instance, self.move, fault_of(VirtError(why)))
        journal.close_action(run.action, outcome=why, failed=True)

    def after_failure(self, run: Run, error: BaseException) -> StepSpec | None:
        """A server that lives on is counted again before it can be asked anything."""
        return self.clean_up if run.step.name == "terminate" else None

    def count_again(self, run: Run) -> None:
        """On a conductor, which may touch the global side. A newer delete of the same server wins."""
        newer = InstanceAction.objects.filter(server_id=run.instance.uuid, key="Delete", pk__gt=run.action.pk)
        if not run.instance.deleted and not newer.exists():
            InstanceMapping.objects.filter(pk=run.instance.uuid).update(queued_for_delete=False)


def bury(instance: Instance) -> None:
    """Record and claims, in one transaction of the caller."""
    state.bury(instance)
    claims.release(instance.uuid)
