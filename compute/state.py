"""The states of a server, and the only code that changes them: one conditional UPDATE each.

Callers race; the database picks one. A state and its reason (the action row) are written in one
transaction, opened by the caller.
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
    """What the server is, when nothing is going on. Values are Nova's."""

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
    """What is going on with it. Values are Nova's."""

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
    RESIZE_PREP = "resize_prep"  # all of a resize or a cold migration, until the user confirms or reverts it
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
    """One legal trip: from a stable state, through `busy`, to `done`; `failed` where it breaks.

    `done` or `failed` of None leave vm_state as it was. `over` names the task states it may preempt; `then` is
    what the server goes on with, when a request waits for it.
    """

    start: frozenset[VmState]
    busy: TaskState
    done: VmState | None = None
    failed: VmState | None = None
    over: frozenset[TaskState] = frozenset()
    then: TaskState | None = None


# status shown by the API: vm_state -> {task_state or None: status} (nova.md 5.8)
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
    """The one word the API shows for a server; UNKNOWN for a state nobody knows."""
    found = _STATUS.get(vm_state)
    if found is None:
        return "UNKNOWN"
    return found[1].get(task_state or "", found[0])


def conditions_for(wanted: str) -> Q | None:
    """The filter that finds servers of a status, or None when no server can have it."""
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

    Whatever is asked of a server that went off with its host, it does not come back by itself any more.
    """
    idle = Q(task_state__isnull=True)
    if move.over:
        idle |= Q(task_state__in=move.over)
    _swap(instance, Q(vm_state__in=move.start) & idle, task_state=move.busy, resumes_with_host=False)


def finish(instance: Instance, move: Move, power_state: PowerState | None = None, **also: Any) -> None:
    """Busy -> done, unless a delete or an operator moved the server meanwhile (StateConflict)."""
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
    """Change columns of a busy server (host, progress) without ending its move."""
    _swap(instance, Q(task_state=move.busy), **changes)


def set_location(instance: Instance, **where: Any) -> None:
    """Write down that the guest is elsewhere now, whatever the server is about to do. Nothing for a deleted one."""
    with suppress(StateConflict):
        _swap(instance, Q(), **where)


def reset(instance: Instance, vm_state: VmState) -> None:
    """What an operator says, whatever it was."""
    _swap(instance, Q(vm_state__in=LIVING), vm_state=vm_state, task_state=None)


def mark_deleted(instance: Instance, when: datetime | None = None) -> None:
    """Living -> deleted; the row stays as history."""
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
    """Write down what the hypervisor says about an idle server.

    StateConflict when it is busy, or was since `instance` was read: then the look was older than that.
    """
    changes: dict[str, Any] = {"power_state": power_state, **also}
    if vm_state is not None:
        changes["vm_state"] = vm_state
    _swap(instance, Q(task_state__isnull=True, generation=instance.generation), **changes)


def observe_all(seen: Iterable[tuple[Instance, dict[str, Any]]]) -> list[Instance]:
    """`observe` for many, each with the columns to write, in as many statements as there are different changes.

    In the caller's transaction. Those that were written down; the others are busy, or were since they were read.
    """
    return _swap_all(seen)


def begin_all(wanted: Iterable[tuple[Instance, Move, PowerState]]) -> list[Instance]:
    """`begin` for many that nothing happened to since they were read; their power state was seen. As `observe_all`."""
    return _swap_all(
        (instance, {"task_state": move.busy, "power_state": power_state, "resumes_with_host": False})
        for instance, move, power_state in wanted if instance.vm_state in move.start
    )  # fmt: skip


def _swap_all(wanted: Iterable[tuple[Instance, dict[str, Any]]]) -> list[Instance]:
    """Under the locks of the rows, so that nobody comes between the look and the writing."""
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
    """Compare and set, in one UPDATE."""
    changes |= {"generation": F("generation") + 1, "updated_at": timezone.now()}
    rows = type(instance).objects.filter(expect, pk=instance.pk, deleted=False)
    moved = rows.update(**changes)
    instance.refresh_from_db()
    if not moved:
        raise StateConflict(instance.uuid, instance.vm_state, instance.task_state)
