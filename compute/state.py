"""The states of a server, and the only code that changes them: one conditional UPDATE each.

Callers race; the database picks one. The caller opens the transaction, and writes the state and its reason (the action
row) in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from compute.errors import StateConflict
from compute.virt.base import PowerState

if TYPE_CHECKING:
    from compute.models import Instance


class VmState(models.TextChoices):
    """What the server is while it has no task. Values are Nova's."""

    ACTIVE = "active"
    BUILDING = "building"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    STOPPED = "stopped"
    RESCUED = "rescued"
    RESIZED = "resized"
    SOFT_DELETED = "soft-delete"
    DELETED = "deleted"
    ERROR = "error"
    SHELVED = "shelved"
    SHELVED_OFFLOADED = "shelved_offloaded"


class TaskState(models.TextChoices):
    """The task that the server has. Values are Nova's."""

    SCHEDULING = "scheduling"
    SPAWNING = "spawning"
    IMAGE_SNAPSHOT = "image_snapshot"
    IMAGE_UPLOADING = "image_uploading"
    POWERING_OFF = "powering-off"
    POWERING_ON = "powering-on"
    REBOOTING = "rebooting"
    REBOOTING_HARD = "rebooting_hard"
    PAUSING = "pausing"
    UNPAUSING = "unpausing"
    SUSPENDING = "suspending"
    RESUMING = "resuming"
    DELETING = "deleting"
    MIGRATING = "migrating"  # live
    RESIZE_PREP = "resize_prep"  # all of a resize or a cold migration, until the server is RESIZED
    RESIZE_CONFIRMING = "resize_confirming"
    RESIZE_REVERTING = "resize_reverting"
    REBUILDING = "rebuilding"  # also all of an evacuation
    RESCUING = "rescuing"
    UNRESCUING = "unrescuing"
    SHELVING = "shelving"
    SHELVING_OFFLOADING = "shelving_offloading"
    UNSHELVING = "unshelving"
    SOFT_DELETING = "soft-deleting"
    RESTORING = "restoring"
    IMAGE_BACKUP = "image_backup"


ANY = frozenset(VmState)
LIVING = ANY - {VmState.DELETED}
REBOOT_WAITS = frozenset(
    {TaskState.REBOOTING, TaskState.REBOOTING_HARD, TaskState.RESUMING, TaskState.UNPAUSING,
     TaskState.PAUSING, TaskState.SUSPENDING}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Move:
    """One legal transition: from a stable state, through `busy`, to `done`, or to `failed` when it fails.

    `done` or `failed` of None leave vm_state as it was. `over` names the task states it may preempt. `then` is the
    task state afterwards, when another request waits for the server.
    """

    start: frozenset[VmState]
    busy: TaskState
    done: VmState | None = None
    failed: VmState | None = None
    over: frozenset[TaskState] = frozenset()
    then: TaskState | None = None


# vm_state -> (status, {task_state: status}), as the API shows it (Compute API guide, "Server concepts")
_REBOOTS = {TaskState.REBOOTING.value: "REBOOT", TaskState.REBOOTING_HARD.value: "HARD_REBOOT"}
_MIGRATES = {TaskState.MIGRATING.value: "MIGRATING"}
_RESIZES = {TaskState.RESIZE_PREP.value: "RESIZE"}
_REBUILDS = {TaskState.REBUILDING.value: "REBUILD"}
_STATUS: dict[str, tuple[str, dict[str, str]]] = {
    VmState.ACTIVE: ("ACTIVE", {**_REBOOTS, **_MIGRATES, **_RESIZES, **_REBUILDS}),
    VmState.BUILDING: ("BUILD", {}),
    VmState.STOPPED: ("SHUTOFF", {**_RESIZES, **_REBUILDS}),
    VmState.PAUSED: ("PAUSED", _MIGRATES),
    VmState.SUSPENDED: ("SUSPENDED", {}),
    VmState.RESCUED: ("RESCUE", {}),
    VmState.RESIZED: ("VERIFY_RESIZE", {TaskState.RESIZE_REVERTING.value: "REVERT_RESIZE"}),
    VmState.SOFT_DELETED: ("SOFT_DELETED", {}),
    VmState.DELETED: ("DELETED", {}),
    VmState.ERROR: ("ERROR", _REBUILDS),
    VmState.SHELVED: ("SHELVED", {}),
    VmState.SHELVED_OFFLOADED: ("SHELVED_OFFLOADED", {}),
}


def status(vm_state: str, task_state: str | None) -> str:
    """Return the status that the API shows for a server; UNKNOWN for an unknown vm_state."""
    found = _STATUS.get(vm_state)
    if found is None:
        return "UNKNOWN"
    return found[1].get(task_state or "", found[0])


def conditions_for(wanted: str) -> Q | None:
    """Return the filter for servers of a status; None when no server can have it."""
    wanted = wanted.upper()
    found = Q()
    for vm_state, (default, by_task) in _STATUS.items():
        if default == wanted:
            rest = Q(task_state__isnull=True) | ~Q(task_state__in=list(by_task))
            found |= Q(vm_state=vm_state) & (rest if by_task else Q())
        tasks = [task for task, shown in by_task.items() if shown == wanted]
        if tasks:
            found |= Q(vm_state=vm_state, task_state__in=tasks)
    return found or None


def begin(instance: Instance, move: Move) -> None:
    """Stable -> busy. Callers race; one wins, the rest get StateConflict.

    Also clears `resumes_with_host`: after any request the server does not start again with its host.
    """
    idle = Q(task_state__isnull=True)
    if move.over:
        idle |= Q(task_state__in=move.over)
    _swap(instance, Q(vm_state__in=move.start) & idle, task_state=move.busy, resumes_with_host=False)


def finish(instance: Instance, move: Move, power_state: PowerState | None = None, **also: Any) -> None:
    """Busy -> done. Raises StateConflict when a delete or an operator moved the server meanwhile."""
    changes: dict[str, Any] = {"task_state": move.then, "progress": 0, **also}
    if move.done is not None:
        changes["vm_state"] = move.done
    if power_state is not None:
        changes["power_state"] = power_state
    _swap(instance, Q(task_state=move.busy), **changes)


def abandon(instance: Instance, move: Move, fault: dict[str, Any] | None,
            power_state: PowerState | None = None, **also: Any) -> None:  # fmt: skip
    """Busy -> idle after a failure, with the reason. Raises StateConflict when preempted."""
    changes: dict[str, Any] = {"task_state": move.then, "progress": 0, **also}
    if fault is not None:
        changes["fault"] = fault
    if move.failed is not None:
        changes["vm_state"] = move.failed
    if power_state is not None:
        changes["power_state"] = power_state
    _swap(instance, Q(task_state=move.busy), **changes)


def during(instance: Instance, move: Move, **changes: Any) -> None:
    """Change columns of a busy server (host, progress) without ending its move. Raises StateConflict."""
    _swap(instance, Q(task_state=move.busy), **changes)


def set_location(instance: Instance, **where: Any) -> None:
    """Record that the guest is elsewhere now, whatever task the server has. A deleted server is left alone."""
    with suppress(StateConflict):
        _swap(instance, Q(), **where)


def reset(instance: Instance, vm_state: VmState) -> None:
    """Set the vm_state that an operator asked for, and end any task. Raises StateConflict for a deleted server."""
    _swap(instance, Q(vm_state__in=LIVING), vm_state=vm_state, task_state=None)


def mark_deleted(instance: Instance, when: datetime | None = None) -> None:
    """Living -> deleted; the row stays as history. Raises StateConflict."""
    now = when or timezone.now()
    _swap(
        instance,
        Q(deleted=False),
        vm_state=VmState.DELETED,
        task_state=None,
        power_state=PowerState.NOSTATE,
        deleted=True,
        deleted_at=now,
        terminated_at=now,
    )


def observe(instance: Instance, power_state: PowerState, vm_state: VmState | None = None, **also: Any) -> None:
    """Record what the hypervisor says about an idle server.

    Raises StateConflict when it is busy, or was since `instance` was read: the observation is older than that.
    """
    changes: dict[str, Any] = {"power_state": power_state, **also}
    if vm_state is not None:
        changes["vm_state"] = vm_state
    _swap(instance, Q(task_state__isnull=True, generation=instance.generation), **changes)


def observe_all(seen: Iterable[tuple[Instance, dict[str, Any]]]) -> list[Instance]:
    """`observe` for many, each with the columns to write; one statement per distinct set of changes.

    In the caller's transaction. Return those that were written; the others are busy, or were since they were read.
    """
    return _swap_all(seen)


def begin_all(wanted: Iterable[tuple[Instance, Move, PowerState]]) -> list[Instance]:
    """`begin` for many servers that have not changed since they were read, with their power state. As `observe_all`."""
    return _swap_all(
        (instance, {"task_state": move.busy, "power_state": power_state, "resumes_with_host": False})
        for instance, move, power_state in wanted if instance.vm_state in move.start
    )  # fmt: skip


def _swap_all(wanted: Iterable[tuple[Instance, dict[str, Any]]]) -> list[Instance]:
    """Check and write under the locks of the rows, so that no other process writes in between."""
    by_pk = {instance.pk: (instance, changes) for instance, changes in wanted}
    if not by_pk:
        return []
    model = type(next(iter(by_pk.values()))[0])
    idle = model.objects.select_for_update().filter(pk__in=by_pk, deleted=False, task_state__isnull=True)
    found = dict(idle.order_by("pk").values_list("pk", "generation"))
    won = [pair for pk, pair in by_pk.items() if found.get(pk) == pair[0].generation]
    alike: dict[tuple[tuple[str, Any], ...], list[Instance]] = {}
    for instance, changes in won:
        alike.setdefault(tuple(sorted(changes.items())), []).append(instance)
    for columns, instances in alike.items():
        also = {"generation": F("generation") + 1, "updated_at": timezone.now()}
        model.objects.filter(pk__in=[one.pk for one in instances]).update(**dict(columns), **also)
        for instance in instances:
            instance.generation += 1
            for name, value in columns:
                setattr(instance, name, value)
    return [instance for instance, _ in won]


def _swap(instance: Instance, expect: Q, **changes: Any) -> None:
    """Compare and set, in one UPDATE. Raises StateConflict."""
    changes |= {"generation": F("generation") + 1, "updated_at": timezone.now()}
    rows = type(instance).objects.filter(expect, pk=instance.pk, deleted=False)
    moved = rows.update(**changes)
    instance.refresh_from_db()
    if not moved:
        raise StateConflict(instance.uuid, instance.vm_state, instance.task_state)
