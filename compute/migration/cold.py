"""What a resize and a cold migration have in common: off here, over there, on again, and then the user's word.

Until the user confirms or reverts it the source keeps what it had, and its room.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from typing import Any, ClassVar

from django.conf import settings
from django.db import transaction

from cloud.errors import BadRequest
from compute import state
from compute.contract import bare_metal
from compute.errors import StateConflict
from compute.migration import moves as migration_moves
from compute.models import Flavor, Instance, InstanceAction
from compute.operations import journal, registry
from compute.operations.action import OPS, On, ServerAction, StepContext, StepSpec, fault_of
from compute.placement import claims, quota
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import GuestNotFound, PowerState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED})
MOVE = Move(FROM, TaskState.RESIZE_PREP, VmState.RESIZED)
COMES_UP = "comes_up"  # in params: it is off only because its host was to go down, so it runs where it arrives
SIZE = ("vcpus", "memory_mb", "disk_gb")


class ColdMove(ServerAction):
    """Active or stopped -> resized, elsewhere. A resize that waits for a stopped source waits with nothing done."""

    move: ClassVar[Move | None] = MOVE
    unsupported_on_bare_metal = bare_metal.CANNOT_MOVE
    steps = (
        StepSpec("check_source", "compute_check_source"),
        StepSpec("pick", "cold_migrate", On.CONDUCTOR, OPS, undo="give_back"),
        StepSpec("pre_migrate", "compute_prep_resize", On.DEST, OPS, undo="cancel_pre_migrate"),
        StepSpec("leave", "compute_resize_instance", On.SOURCE, OPS, undo="come_back", long=True),
        StepSpec("finish", "compute_finish_resize", On.DEST, OPS, undo="go_away", no_return=True),
        StepSpec("forget_source", "compute_forget_source", On.SOURCE, OPS),
    )

    # -- there

    def check_source(self, run: StepContext) -> None:
        """The guest is here. Raises GuestNotFound."""
        if run.hypervisor.power_state(run.instance.uuid) == PowerState.NOSTATE:
            raise GuestNotFound(f"no guest {run.instance.uuid} on host {run.params['source']}")

    def pick(self, run: StepContext) -> None:
        """Another host, and room for the new size on it; the project is counted for the larger of both sizes."""
        new = run.params["new"]
        with run.fenced(), transaction.atomic(using="default"):
            quota.grow(run.instance.project_id, run.instance.uuid, new["vcpus"], new["memory_mb"])
        migration_moves.claim(run, migration_moves.wanted(run.instance, run.params["host"], size=new))

    def pre_migrate(self, run: StepContext) -> None:
        """The destination makes ready, and says where it is to be found."""
        arrival = run.hypervisor.pre_migrate(run.instance.as_guest())
        run.change_params(arrival=dict(arrival))

    def leave(self, run: StepContext) -> None:
        """Off, with grace, and over, however long its disk takes. Gone already is success."""
        guest, driver = run.instance.as_guest(), run.hypervisor
        if driver.power_state(guest.uuid) == PowerState.RUNNING:
            driver.check_can_migrate(guest.uuid, run.params["arrival"])
        off = grace.shut_down(run)
        went = run.hypervisor.migrate_out(guest, run.params["arrival"], migration_moves.watching(run, MOVE))
        run.note(f"{off}; {went}")

    def finish(self, run: StepContext) -> None:
        """In its new size, and on if it was on. One whose server was deleted on the way ends here."""
        if run.instance.deleted:
            run.hypervisor.destroy(run.instance.uuid)
            return
        guest = resized(run.instance, run.params["new"]).as_guest()
        run.hypervisor.finish_migration(guest)
        if run.params["was"] == VmState.ACTIVE or (run.params.get(COMES_UP) and settings.RESUME_GUESTS):
            run.hypervisor.power_on(guest)

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """The server belongs to its new host, and has its new size."""
        if run.step.name == "finish":
            migration_moves.arrived(run, **run.params["new"])
            if run.params.get(COMES_UP) and power_state is PowerState.RUNNING:
                journal.change_params(run.action, was=VmState.ACTIVE)
            registry.follow(run.instance, run.params["source"])
        elif run.step.name == "forget_source":
            claims.release(run.instance.uuid, run.params["source_node"])

    def next_step(self, done: str, run: StepContext) -> StepSpec | None:
        """Nothing after `finish`, unless somebody took the server: then there is nothing left to confirm."""
        if done == "finish" and run.instance.task_state == MOVE.busy and not run.instance.deleted:
            return None
        return super().next_step(done, run)

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """Resized. One whose server was taken is done, too."""
        if run.step.name == "finish":
            super().complete(run, power_state)

    def abandon(self, run: StepContext, error: BaseException, power_state: PowerState | None) -> None:
        """It is where it was, and as it was: also one that is to run with its host again."""
        comes_up = run.params.get(COMES_UP, False)
        state.abandon(run.instance, MOVE, fault_of(error), power_state, resumes_with_host=comes_up)

    def forget_source(self, run: StepContext) -> None:
        """Nobody will ask for what the source has kept."""
        migration_moves.remove_stale(run, run.params["source"])

    # -- and back again

    def go_away(self, run: StepContext) -> None:
        """What came to the destination ends there; the source has what it had."""
        run.hypervisor.destroy(run.instance.uuid)

    def come_back(self, run: StepContext) -> None:
        """It lives at the source, as before."""
        if not run.instance.deleted:
            run.hypervisor.revert_migration(run.instance.as_guest())
            if run.params["was"] == VmState.ACTIVE:
                run.hypervisor.power_on(run.instance.as_guest())

    def cancel_pre_migrate(self, run: StepContext) -> None:
        """The destination waits no more."""
        run.hypervisor.cancel_pre_migrate(run.instance.uuid)

    def give_back(self, run: StepContext) -> None:
        """The room claimed at the destination, and what the project was counted for it."""
        with run.fenced():
            migration_moves.give_back(run)
        count(run, without=run.action.pk)


def begun_at(
    instance: Instance, host: str = "", new: dict[str, Any] | None = None, flavor: Flavor | None = None
) -> dict[str, Any]:
    """The params a cold move begins with; `new` are columns of the server, as they will be, with its new `flavor`."""
    old = columns(instance)
    return {
        **migration_moves.begun_at(instance, flavor),
        "host": host, "was": instance.vm_state, "old": old, "new": new or old,
    }  # fmt: skip


def columns(instance: Instance) -> dict[str, Any]:
    """The server's size, as its row has it."""
    return {name: getattr(instance, name) for name in (*SIZE, "flavor_id", "flavor")}


def resized(instance: Instance, new: dict[str, Any]) -> Instance:
    """The row as it will be; not saved."""
    future = copy(instance)
    for name, value in new.items():
        setattr(future, name, value)
    return future


def last(instance: Instance) -> InstanceAction | None:
    """The move that waits for the user's word."""
    done = InstanceAction.objects.filter(server_id=instance.uuid, key__in=("Resize", "Migrate"), message__isnull=True)
    row = done.filter(finished_at__isnull=False).order_by("-pk").first()
    return None if row is None or "ended" in row.params else row


def status_of(instance: Instance) -> dict[str, Any]:
    """The params of the user's word. Raises BadRequest when nothing waits for it."""
    row = last(instance)
    if row is None:
        raise BadRequest("Instance has not been resized.")
    kept = ("source", "source_node", "source_zone", "destination", "destination_node", "was", "old", "new")
    return {"move": row.pk, **{name: row.params.get(name, "") for name in kept}}


def count(run: StepContext, without: int = 0) -> None:
    """Count the server for its project as large as it is now. On a conductor, in a step.

    That is the size of its row, or that of a move which is under way or waits for the user's word, whichever is
    larger; `without`: a move that is over. What the caller's action knows of sizes may be old: a newer move may have
    begun since. Read under the project's lock, so that nothing is counted between the reading and the writing.
    """
    with run.fenced(), transaction.atomic(using="default"):
        quota.lock(run.instance.project_id)
        run.instance.refresh_from_db()
        moves = InstanceAction.objects.filter(server_id=run.instance.uuid, key__in=("Resize", "Migrate"))
        sizes = [row.params["new"] for row in moves.filter(finished_at__isnull=True).exclude(pk=without)]
        waits = last(run.instance)
        if waits is not None and waits.pk != without:
            sizes += [waits.params["old"], waits.params["new"]]
        largest = columns(run.instance)
        for name in SIZE:
            largest[name] = max(largest[name], *(size[name] for size in sizes), 0)
        quota.count_as(run.instance.uuid, largest)


def ended(run: StepContext, how: str, power_state: PowerState | None = None) -> None:
    """The user's word is carried out: resized -> what it was. In the transaction that closes the step."""
    move = InstanceAction.objects.get(pk=run.params["move"])
    journal.change_params(move, ended=how)
    done = VmState(run.params["was"])
    with suppress(StateConflict):
        busy = TaskState.RESIZE_REVERTING if how == "reverted" else TaskState.RESIZE_CONFIRMING
        state.finish(run.instance, Move(frozenset({VmState.RESIZED}), busy, done), power_state)
