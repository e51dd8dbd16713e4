"""What every end of a server has in common, at once or after a while in which it can be restored.

A deleted server is not counted by the quota from the moment the delete is asked for: the flag of its mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from django.conf import settings
from django.db import transaction

from cells.context import current_alias
from cells.models import InstanceMapping
from compute import state
from compute.errors import StateConflict
from compute.migration import cold, moves
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal, registry
from compute.operations.action import OPS, Answer, Asked, On, Run, ServerAction, StepSpec, fault_of
from compute.placement import claims
from compute.shutdown import grace, options
from compute.state import Move, TaskState, VmState
from compute.virt.base import HypervisorUnavailable, PowerState, VirtError

KEYS = ("Delete", "SoftDelete")
GOING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})
FORGET_SOURCE = StepSpec("forget_source", "compute_forget_source", On.SOURCE, OPS)  # of one that was resized


def key_for(instance: Instance) -> str:
    """Which action a DELETE asks for: only what has run, and is on a host, is kept for a while."""
    keeps = settings.RECLAIM_INSTANCE_INTERVAL > 0 and instance.launched_at is not None and instance.host
    return "SoftDelete" if keeps else "Delete"


@contextmanager
def uncounted(server_id: str) -> Iterator[None]:
    """The quota does not count the server any more.

    Said first: whoever dies before the delete is recorded leaves a flag on a server that lives, and the scheduler
    takes that back. Said again afterwards: it may have done so just now.
    """
    mapped = InstanceMapping.objects.filter(pk=server_id)
    mapped.update(queued_for_delete=True)
    yield
    mapped.update(queued_for_delete=True)


def is_ended(instance: Instance) -> bool:
    """Whether it is gone, soft-deleted, or about to be: then the quota does not count it."""
    return instance.deleted or instance.vm_state == VmState.SOFT_DELETED or instance.task_state in GOING


def farewell(instance: Instance, words: Any) -> dict[str, Any]:
    """How long the guest of a server that is deleted has, for the params: none, as with Nova, unless somebody says so.

    The request's word counts more than the server's own; SOFT is a word, too.
    """
    if options.are_in(words):
        return options.asked(words)
    return {} if grace.own(instance) is not None else {grace.ASKED: 0}


def hurry(instance: Instance, words: Any) -> None:
    """HARD ends the wait of the delete that goes on; any other word finds it going on, and changes nothing.

    The step is held while the action is changed: one that is about to wait looks again after it (`running._park`).
    """
    if options.asked(words).get(grace.ASKED) != 0:
        return
    with transaction.atomic(using=current_alias()):
        going = Step.objects.select_for_update(of=("self",)).select_related("action")
        for step in going.filter(server_id=instance.uuid, action__key__in=KEYS, state__in=journal.OPEN):
            journal.change_params(step.action, **{grace.ASKED: 0})
            journal.go_on(step)


class Ending(ServerAction):
    """Preempts what runs. A server that lives on after all is counted again before it can be asked anything."""

    name = "delete"
    policy = "os_compute_api:servers:delete"
    clean_up = StepSpec("count_again", "conductor_keep_instance", on=On.CONDUCTOR)
    needs_host = False
    move: ClassVar[Move]

    def submit(self, instance: Instance, asked: Asked) -> Answer:
        """Deleting a server that is being deleted is success, and nothing more happens."""
        goes_on = instance.task_state is not None and instance.task_state not in self.move.over
        if instance.deleted or goes_on:
            hurry(instance, asked.body)
            return Answer(204)
        return super().submit(instance, asked)

    def prepare(self, instance: Instance, asked: Asked) -> dict[str, Any]:
        """How long the guest has."""
        return farewell(instance, asked.body)

    def begin(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> None:
        """What is queued for the server is cancelled; what runs ends first, then this runs."""
        try:
            super().begin(instance, asked, params)
        except StateConflict:
            params["late"] = True  # another delete was faster
            hurry(instance, asked.body)
            return
        registry.cancel_open(instance, "the server was deleted")
        params |= self.known_of(instance)

    def known_of(self, instance: Instance) -> dict[str, Any]:
        """What it left elsewhere when it was resized; also of one in ERROR, after a delete that failed."""
        waits = cold.last(instance)
        if waits is None:
            return {}
        return {"move": waits.pk, "source": waits.params["source"], "source_node": waits.params["source_node"]}

    def record(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> Any:
        """Nothing, when another delete was faster."""
        return None if params.get("late") else super().record(instance, asked, params)

    def answer(self, params: dict[str, Any], asked: Asked) -> Answer:
        """No body."""
        return Answer(204)

    def shut_down(self, run: Run) -> None:
        """With the grace it was given. It goes, whatever its guest does."""
        try:
            run.note(grace.shut_down(run))
        except HypervisorUnavailable:
            raise
        except VirtError as error:
            run.note(f"could not be shut down: {error}")

    def forget_source(self, run: Run) -> None:
        """What its old host has kept for a revert."""
        moves.end_at(run, run.params["source"])

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """A resize whose server is deleted is as good as confirmed."""
        if run.step.name == "forget_source" and run.instance.host != run.params["source"]:
            claims.release(run.instance.uuid, run.params["source_node"])
            move = InstanceAction.objects.get(pk=run.params["move"])
            if "ended" not in move.params:
                journal.change_params(move, ended="confirmed")

    def next_step(self, done: str, run: Run) -> StepSpec | None:
        """Only a server that was resized has left something on another host."""
        return super().next_step(done, run) if "source" in run.params else None

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """All is recorded with its end; or it failed, and lives on, unless a newer delete has it."""
        if run.step.name != "count_again":
            return
        ended = run.action.steps.filter(name=self.steps[0].name, state__in=("failed", "cancelled")).last()
        why = ended.details if ended else "the delete was taken back"
        with suppress(StateConflict):
            state.abandon(run.instance, self.move, fault_of(VirtError(why)))
        journal.close_action(run.action, outcome=why, failed=True)

    def after_failure(self, run: Run, error: BaseException) -> StepSpec | None:
        """A server that lives on is counted again before it can be asked anything."""
        return self.clean_up if run.step.name == self.steps[0].name else None

    def count_again(self, run: Run) -> None:
        """On a conductor, which may touch the global side. A newer delete of the same server wins."""
        instance = run.instance
        newer = InstanceAction.objects.filter(server_id=instance.uuid, key__in=KEYS, pk__gt=run.action.pk)
        stays = self.move.failed or instance.vm_state
        with run.fenced():
            if not instance.deleted and stays != VmState.SOFT_DELETED and not newer.exists():
                InstanceMapping.objects.filter(pk=instance.uuid).update(queued_for_delete=False)
