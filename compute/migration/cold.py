"""What resize and cold migration share: stop the guest, copy it, start it elsewhere, wait for confirm or revert.

Until the user confirms or reverts the move, the source keeps the guest's files and the allocation.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from django.conf import settings
from django.db import transaction

from cloud.errors import BadRequest
from compute import state
from compute.contract import bare_metal
from compute.errors import StateConflict
from compute.migration import moves as migration_moves
from compute.migration.watch import MigrationWatch
from compute.models import Flavor, Instance, InstanceAction
from compute.operations import journal, registry
from compute.operations.action import OPS, ActionParams, On, StepContext, StepSpec, fault_of
from compute.placement import claims, quota
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import GuestNotFound, PowerState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED})
MOVE = Move(FROM, TaskState.RESIZE_PREP, VmState.RESIZED)
SIZE = ("vcpus", "memory_mb", "disk_gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdMoveParams(migration_moves.MoveParams):
    """The parameters of a resize or a cold migration."""

    was: VmState  # before the move
    # columns that make the server's size, before and after, with those that are to change with it
    old: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    comes_up: bool = False  # it is off only because its host was shut down, so it starts at the destination
    ended: str = ""  # "confirmed" or "reverted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedMoveParams(ActionParams):
    """The parameters of a confirm or a revert: those of the move that it ends."""

    move: int = 0  # id of the move's InstanceAction
    source_node: str = ""
    source_zone: str = ""
    destination_node: str = ""
    was: VmState = VmState.STOPPED
    old: dict[str, Any] = field(default_factory=dict)


class ColdMove(migration_moves.Migration[ColdMoveParams]):
    """Active or stopped -> resized, on another host.

    `check_source` is the first step, so an action that waits for a stopped source has changed nothing yet.
    """

    move: ClassVar[Move | None] = MOVE
    unsupported_on_bare_metal = bare_metal.CANNOT_MOVE
    steps = (
        StepSpec("check_source", "compute_check_source"),
        StepSpec("pick", "cold_migrate", On.CONDUCTOR, OPS, undo="release_claim"),
        StepSpec("pre_migrate", "compute_prep_resize", On.DEST, OPS, undo="cancel_pre_migrate"),
        StepSpec(
            "migrate_out", "compute_resize_instance", On.SOURCE, OPS, undo="revert_migration", long=True,
            status="migrating",
        ),
        StepSpec(
            "finish_migration", "compute_finish_resize", On.DEST, OPS, undo="cleanup_destination", no_return=True,
            status="post-migrating",
        ),
        StepSpec("cleanup_source", "compute_forget_source", On.SOURCE, OPS, status="post-migrating"),
    )  # fmt: skip

    # -- the steps

    def check_source(self, run: StepContext[ColdMoveParams]) -> None:
        """Check that the guest is on the source. Raises GuestNotFound."""
        if run.hypervisor.power_state(run.instance.uuid) == PowerState.NOSTATE:
            raise GuestNotFound(f"no guest {run.instance.uuid} on host {run.params.source}")

    def pick(self, run: StepContext[ColdMoveParams]) -> None:
        """Pick another host and claim the new size on it; grow the quota usage to the larger of both sizes."""
        new = run.params.new
        with run.fenced(), transaction.atomic(using="default"):
            quota.grow(run.instance.project_id, run.instance.uuid, new["vcpus"], new["memory_mb"])
        migration_moves.claim(run, migration_moves.wanted(run.instance, run.params.host, size=new))

    def migrate_out(self, run: StepContext[ColdMoveParams]) -> None:
        """Shut the guest down with its grace period and hand it over, however long the copy takes. Idempotent."""
        guest, driver = run.instance.as_guest(), run.hypervisor
        if driver.power_state(guest.uuid) == PowerState.RUNNING:
            driver.check_can_migrate(guest.uuid, run.params.arrival)
        off = grace.shut_down(run)
        went = run.hypervisor.migrate_out(guest, run.params.arrival, MigrationWatch(run, MOVE))
        run.note(f"{off}; {went}")

    def finish_migration(self, run: StepContext[ColdMoveParams]) -> None:
        """Give the guest its new size, and start it if it ran. Destroy it if the server was deleted meanwhile."""
        if run.instance.deleted:
            run.hypervisor.destroy(run.instance.uuid)
            return
        guest = resized(run.instance, run.params.new).as_guest()
        run.hypervisor.finish_migration(guest)
        if run.params.was == VmState.ACTIVE or (run.params.comes_up and settings.RESUME_GUESTS):
            run.hypervisor.power_on(guest)

    def record_step(self, run: StepContext[ColdMoveParams], power_state: PowerState | None) -> None:
        """Record host and size after `finish_migration`; release the source's allocation after `cleanup_source`."""
        if run.runs(self.finish_migration):
            migration_moves.arrived(run, **run.params.new)
            if run.params.comes_up and power_state is PowerState.RUNNING:
                journal.change_params(
                    run.action, ColdMoveParams, lambda params: replace(params, was=VmState.ACTIVE)
                )
            registry.follow(run.instance, run.params.source)
        elif run.runs(self.cleanup_source):
            claims.release(run.instance.uuid, run.params.source_node)

    def next_step(self, done: str, run: StepContext[ColdMoveParams]) -> StepSpec | None:
        """End after `finish_migration`, unless another action took the server: then `cleanup_source` follows."""
        if run.runs(self.finish_migration) and run.instance.task_state == MOVE.busy and not run.instance.deleted:
            return None
        return super().next_step(done, run)

    def complete(self, run: StepContext[ColdMoveParams], power_state: PowerState | None) -> None:
        """Resized. Does nothing after `cleanup_source`: the server was taken over by another action."""
        if run.runs(self.finish_migration):
            super().complete(run, power_state)

    def abandon(self, run: StepContext[ColdMoveParams], error: BaseException, power_state: PowerState | None) -> None:
        """The server is where and as it was; if it was to start again with its host, it still is."""
        state.abandon(run.instance, MOVE, fault_of(error), power_state, resumes_with_host=run.params.comes_up)

    # -- the compensations

    def cleanup_destination(self, run: StepContext[ColdMoveParams]) -> None:
        """Destroy the guest at the destination; the source still has its own."""
        run.hypervisor.destroy(run.instance.uuid)

    def revert_migration(self, run: StepContext[ColdMoveParams]) -> None:
        """Restore the guest at the source, and start it if it ran."""
        if not run.instance.deleted:
            run.hypervisor.revert_migration(run.instance.as_guest())
            if run.params.was == VmState.ACTIVE:
                run.hypervisor.power_on(run.instance.as_guest())

    def release_claim(self, run: StepContext[ColdMoveParams]) -> None:
        """Release the allocation at the destination, and shrink the quota usage again."""
        with run.fenced():
            migration_moves.release_claim(run)
        update_quota(run, without=run.action.pk)


def begun_at(
    instance: Instance, asked: int | None, *, host: str = "", new: dict[str, Any] | None = None,
    flavor: Flavor | None = None,
) -> ColdMoveParams:  # fmt: skip
    """Return the params of a new cold move.

    `asked`: the requested grace period; `new`: columns of the server as they will be, with its new `flavor`; None: the
    size stays. Reads the global database.
    """
    old = columns(instance)
    params = ColdMoveParams(
        shutdown_timeout=asked, host=host, was=VmState(instance.vm_state), old=old, new=new or old,
    )  # fmt: skip
    return migration_moves.begun_at(instance, params, flavor)


def columns(instance: Instance) -> dict[str, Any]:
    """Return the columns that make the server's size, from its row."""
    return {name: getattr(instance, name) for name in (*SIZE, "flavor_id", "flavor")}


def resized(instance: Instance, new: dict[str, Any]) -> Instance:
    """Return a copy of the row with the new columns; not saved."""
    future = copy(instance)
    for name, value in new.items():
        setattr(future, name, value)
    return future


def awaiting_confirmation(instance: Instance) -> InstanceAction | None:
    """Return the finished move that waits for confirm or revert, or None."""
    done = InstanceAction.objects.filter(server_id=instance.uuid, key__in=_keys(), message__isnull=True)
    row = done.filter(finished_at__isnull=False).order_by("-pk").first()
    return None if row is None or ColdMoveParams.load(row.params).ended else row


def _keys() -> list[str]:
    return registry.keys(lambda action: isinstance(action, ColdMove))


def confirm_params(instance: Instance) -> FinishedMoveParams:
    """Return the params for a confirm or revert. Raises BadRequest when no move waits for it."""
    if instance.vm_state != VmState.RESIZED:
        return FinishedMoveParams()  # refused by its state
    row = awaiting_confirmation(instance)
    if row is None:
        raise BadRequest("Instance has not been resized.")
    move = ColdMoveParams.load(row.params)
    return FinishedMoveParams(
        move=row.pk, source=move.source, source_node=move.source_node, source_zone=move.source_zone,
        destination=move.destination, destination_node=move.destination_node, was=move.was, old=move.old,
    )  # fmt: skip


def update_quota(run: StepContext, without: int = 0) -> None:
    """Set the server's quota usage to its current size. On a conductor, in a step; idempotent.

    The current size is the largest of: the row, every move under way, and the move that waits for confirm or revert;
    `without`: the id of a move that is over. The sizes in the caller's action may be outdated, as a newer move may have
    begun since. All is read under the project's quota lock, so nothing is counted between the read and the write.
    """
    with run.fenced(), transaction.atomic(using="default"):
        quota.lock(run.instance.project_id)
        run.instance.refresh_from_db()
        moves = InstanceAction.objects.filter(server_id=run.instance.uuid, key__in=_keys())
        going = moves.filter(finished_at__isnull=True).exclude(pk=without)
        sizes = [ColdMoveParams.load(row.params).new for row in going]
        waits = awaiting_confirmation(run.instance)
        if waits is not None and waits.pk != without:
            move = ColdMoveParams.load(waits.params)
            sizes += [move.old, move.new]
        largest = columns(run.instance)
        for name in SIZE:
            largest[name] = max(largest[name], *(size[name] for size in sizes), 0)
        quota.count_as(run.instance.uuid, largest)


def record_confirmed_or_reverted(
    run: StepContext[FinishedMoveParams], how: str, power_state: PowerState | None = None
) -> None:
    """Record that a move is confirmed or reverted: resized -> what it was. In the transaction that closes the step."""
    move = InstanceAction.objects.get(pk=run.params.move)
    journal.change_params(move, ColdMoveParams, lambda params: replace(params, ended=how))
    with suppress(StateConflict):
        busy = TaskState.RESIZE_REVERTING if how == "reverted" else TaskState.RESIZE_CONFIRMING
        state.finish(run.instance, Move(frozenset({VmState.RESIZED}), busy, run.params.was), power_state)
