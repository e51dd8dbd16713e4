"""The rules of the journal: how a step is opened, claimed and closed. Each change is one conditional UPDATE.

Every claim has a new token. A process writes for its step only while the row still has this token (`fenced`,
`close_step`, `requeue`, `wait_step`): a worker that was paused, or whose step another process recovered meanwhile,
writes nothing. See docs/journal.md, "The fence".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from cells import database_clock
from cells.context import current_alias
from compute.models import HostNeed, Instance, InstanceAction, Service, Step
from compute.operations import dispatch
from compute.operations.params import ActionParams
from compute.virt.shutdown_timer import ShutdownTimer

QUEUED, RUNNING, WAITING = Step.State.QUEUED, Step.State.RUNNING, Step.State.WAITING
LATEST = datetime.max.replace(tzinfo=UTC)
MARGIN = timedelta(seconds=30)  # after its deadline a waiting step goes on, even if no message woke it
FOR_THE_TASK = "waits for the server's task to end"
P = TypeVar("P", bound=ActionParams)
FREE: dict[str, Any] = {"incarnation": "", "token": ""}  # columns of a step without a claim


class StepLost(Exception):
    """The claim of a step is over: another process recovered or ended the step. Write nothing more."""


def open_action(instance: Instance, *, name: str, key: str, request_id: str, user_id: str,
                project_id: str, params: ActionParams | None = None) -> InstanceAction:  # fmt: skip
    """Create the action's row, in the caller's transaction."""
    now = timezone.now()
    return InstanceAction.objects.create(
        server_id=instance.uuid, action=name, key=key, request_id=request_id, user_id=user_id,
        project_id=project_id, params=params.as_json() if params else {}, started_at=now, updated_at=now,
    )  # fmt: skip


def open_step(action: InstanceAction, *, name: str, event: str, host: str, queue: str) -> Step:
    """Add a step to an action; its message is sent when the caller's transaction commits."""
    now = timezone.now()
    step = Step.objects.create(
        action=action, server_id=action.server_id, name=name, event=event, host=host, queue=queue,
        queued_at=now, sent_at=now, sends=1,
    )  # fmt: skip
    dispatch.step(step)
    return step


def open_many(asked: Sequence[tuple[InstanceAction, Sequence[Step]]]) -> None:
    """Record actions with the first steps of each, in a constant number of queries. In the caller's transaction.

    The caller fills in the rows; this function sets their times and sends the messages. A step that the caller gives
    as ended ends its action too: it only records what has happened.
    """
    now = timezone.now()
    for action, first in asked:
        action.started_at = action.updated_at = now
        if any(not step.is_open for step in first):
            action.finished_at = now
    InstanceAction.objects.bulk_create([action for action, _ in asked])
    steps = []
    for action, first in asked:
        for step in first:
            step.action, step.server_id, step.queued_at = action, action.server_id, now
            if step.state == QUEUED:
                step.sent_at, step.sends = now, 1
            else:
                step.started_at = step.finished_at = now
            steps.append(step)
    Step.objects.bulk_create(steps)
    dispatch.steps([step for step in steps if step.state == QUEUED])


def claim(
    step_id: int, worker: str, incarnation: str, host: str | None = None, why_not: Callable[[Step], str] | None = None
) -> Step | None:
    """Claim a queued step for this process; None when it is not queued, not due, or not its turn.

    Steps of one server run one at a time: while another one runs this one stays queued, and `wake_next` sends it again
    when that one ends. `host` ("" for a conductor) excludes steps of another host: a message in the wrong queue does
    no harm. A superseded worker claims nothing: its service record names a newer incarnation. The returned step has a
    new token. `why_not` returns why this process has no room for the step now (the step stays queued with these
    details), or "". Locks the server's row.
    """
    with transaction.atomic(using=current_alias()):
        mine = Q() if host is None else Q(host=host)
        step = Step.objects.select_related("action").filter(mine, pk=step_id, state=QUEUED).first()
        if step is None:
            return None
        # The server's row is the lock for the check whether another step of it runs.
        list(Instance.objects.select_for_update().filter(uuid=step.server_id).values_list("pk"))
        if Step.objects.filter(server_id=step.server_id, state=RUNNING).exists():
            return None
        if why_not is not None and (why := why_not(step)):
            Step.objects.due(pk=step_id).update(details=why)
            return None
        now = timezone.now()
        # A step that waited for a guest keeps its first start: the wait is part of its run time.
        begun = Case(When(timer__isnull=False, then=Coalesce("started_at", now)), default=now)
        rightful = ~Exists(newer_incarnation(worker, incarnation))
        won = Step.objects.due(rightful, pk=step_id).update(
            state=RUNNING, worker=worker, incarnation=incarnation, token=str(uuid4()), attempts=F("attempts") + 1,
            started_at=begun,
        )  # fmt: skip
        if not won:
            return None
        step.refresh_from_db()
        step.details = ""  # the row keeps the reason of this try until the end; it is not the outcome
        return step


def claim_for_operator(step: Step) -> bool:
    """Claim an open step for an operator, even from a running worker; False when the row changed since it was read.

    Runs in a transaction. From then on the worker that held the step writes nothing more.
    """
    token = str(uuid4())
    list(Instance.objects.select_for_update().filter(uuid=step.server_id).values_list("pk"))  # as in `claim`
    as_read = Step.objects.filter(pk=step.pk, state=step.state, token=step.token)
    if not as_read.update(state=RUNNING, token=token):
        return False
    step.state, step.token = RUNNING, token
    return True


def newer_incarnation(worker: str, incarnation: str) -> QuerySet[Service]:
    """Return the service record of a worker if a newer process of its name has registered there."""
    binary, _, host = worker.partition("@")
    return Service.objects.filter(binary=binary, host=host).exclude(incarnation__in=("", incarnation))


@contextmanager
def fenced(step: Step) -> Iterator[None]:
    """Return a transaction of the targeted cell that begins by locking the step this process has claimed.

    Raises StepLost, with nothing written, when the claim is over. Until the transaction ends no other process can
    recover the step. May be nested. A step changes the global database inside this block, so that it holds the claim
    while the global database commits.
    """
    with transaction.atomic(using=current_alias()):
        # SQLite's transactions are IMMEDIATE, so there the read is enough; PostgreSQL locks the row.
        if not list(_mine(step).select_for_update().values_list("pk")):
            raise StepLost(f"step {step.pk} ({step.name}) of server {step.server_id} is not ours any more")
        yield


def is_ours(step: Step) -> bool:
    """Return whether the claim still holds in the database. One query."""
    return _mine(step).exists()


def close_step(step: Step, state: Step.State, *, traceback: str = "") -> bool:
    """End a step that this process runs; False when the claim is over (then write nothing)."""
    now = timezone.now()
    how = {"details": step.details, "traceback": traceback, "timer": step.timer}
    won = _mine(step).update(state=state, finished_at=now, **how)
    if won:
        InstanceAction.objects.filter(pk=step.action_id).update(updated_at=now)
    return bool(won)


def set_details(step: Step, details: str) -> None:
    """Show the progress of a step that this process runs."""
    step.details = details
    _mine(step).update(details=details)


def requeue(step: Step, seconds: float, why: str, **changes: Any) -> bool:
    """Put a step back for another try in `seconds`; False when the claim is over."""
    due = database_clock.now(seconds)
    return bool(_mine(step).update(state=QUEUED, not_before=due, sent_at=None, details=why, **FREE, **changes))


def wait_step(
    step: Step, why: str, timer: ShutdownTimer | None = None, seconds: float | None = None, queue: str = dispatch.OPS
) -> bool:
    """Let a begun step wait without a process; False when the claim is over.

    The step runs again when the timer ends or another process resumes it, and after `seconds` in any case. It moves to
    the ops queue, so that it also goes on where no new work begins. `queue` REQUESTS: a draining host need not stay
    for it.
    """
    due = None if seconds is None else timezone.now() + timedelta(seconds=seconds)
    changes: dict[str, Any] = {"not_before": None if seconds is None else database_clock.now(seconds)}
    if timer is not None:
        deadline = datetime.fromtimestamp(timer.deadline, UTC)
        changes = {"timer": timer.facts, "deadline": deadline, "not_before": min(due or LATEST, deadline + MARGIN)}
    return bool(_mine(step).update(state=WAITING, queue=queue, details=why, **FREE, **changes))


def record_timer(host: str, server_id: str, timer: ShutdownTimer) -> int:
    """Copy a guest's shutdown timer to the steps that wait for it, and resume them if it has ended; return how many."""
    waiting = Step.objects.filter(server_id=server_id, host=host, state=WAITING, timer__isnull=False)
    if timer.runs:
        return waiting.update(timer=timer.facts, details=timer.words())
    with transaction.atomic(using=current_alias()):
        steps = list(waiting.order_by("pk"))
        for step in steps:
            resume_step(step, timer=timer.facts, details=timer.words(), deadline=None)  # the wait's deadline
    return len(steps)


def resume_step(step: Step, **changes: Any) -> bool:
    """Queue a waiting step again, as the same try; False when it does not wait any more. In a transaction."""
    waiting = Step.objects.filter(pk=step.pk, state=WAITING)
    changes |= {"state": QUEUED, "not_before": None, "attempts": Greatest(F("attempts") - 1, 0)}
    changes |= {"sent_at": timezone.now(), "sends": 1}
    if not waiting.update(**changes):
        return False
    step.refresh_from_db()
    dispatch.step(step)
    return True


def close_action(action: InstanceAction, *, outcome: str = "", failed: bool = False) -> None:
    """End an action once; a later call changes neither its times nor its outcome."""
    now = timezone.now()
    InstanceAction.objects.filter(pk=action.pk, finished_at__isnull=True).update(
        finished_at=now, updated_at=now, message="Error" if failed else None, outcome=outcome[:2000]
    )
    HostNeed.objects.filter(action=action).delete()
    _wake_for_a_free_server(action.server_id)
    if emptied := ActionParams.load(action.params).empties:
        dispatch.drain_migrations_changed(emptied)  # there may be room for the next move


def _wake_for_a_free_server(server_id: str) -> None:
    """Resume the steps that waited for the server's task to end, on draining hosts too."""
    free = Instance.objects.filter(uuid=OuterRef("server_id"), task_state__isnull=True)
    waiting = Step.objects.filter(Exists(free), server_id=server_id, state=WAITING, details=FOR_THE_TASK)
    for step in waiting.order_by("pk"):
        resume_step(step, queue=dispatch.OPS)


def remember_fault(action: InstanceAction, fault: dict[str, Any]) -> None:
    """Record why an action is being undone: its first fault. Faults of undo steps are in those steps.

    The row decides which fault was first, not `action`, which may come from a transaction that was rolled back.
    """
    InstanceAction.objects.filter(pk=action.pk, fault__isnull=True).update(fault=fault)


def change_params(action: InstanceAction, kind: type[P], change: Callable[[P], ActionParams]) -> None:
    """Change params of an action under its row's lock: `change` gets what the row has, and returns it changed.

    Only the fields that `change` has changed are written, so what other processes and other versions wrote stays.
    """
    with transaction.atomic(using=current_alias()):
        row = InstanceAction.objects.select_for_update().get(pk=action.pk)
        known = kind.load(row.params)
        row.params |= change(known).changes_since(known)
        row.save(update_fields=["params"])
    action.params = row.params


def set_needs(action: InstanceAction, hosts: set[str]) -> None:
    """Replace the set of hosts that this action still needs. In the caller's transaction."""
    HostNeed.objects.filter(action=action).exclude(host__in=hosts).delete()
    HostNeed.objects.bulk_create([HostNeed(action=action, host=host) for host in hosts], ignore_conflicts=True)


def cancel(step: Step, why: str) -> bool:
    """Cancel a queued step; False when it is not queued any more."""
    queued = Step.objects.filter(pk=step.pk, state=QUEUED)
    return bool(queued.update(state=Step.State.CANCELLED, finished_at=timezone.now(), details=why))


def wake_next(server_id: str) -> None:
    """Send again the messages of the server's queued steps, which waited for their turn."""
    for step in Step.objects.filter(server_id=server_id, state=QUEUED).order_by("queued_at", "pk"):
        dispatch.step(step)


def fix_deadline(step: Step, seconds: float) -> datetime:
    """Return the step's deadline; the first try sets it, restarts keep it. Raises StepLost."""
    if step.deadline is None:
        wanted = timezone.now() + timedelta(seconds=seconds)
        _mine(step).filter(deadline__isnull=True).update(deadline=wanted)
        step.refresh_from_db(fields=["deadline"])
    if step.deadline is None:
        raise StepLost(f"step {step.pk} ({step.name}) of server {step.server_id} is not ours any more")
    return step.deadline


def _mine(step: Step) -> QuerySet[Step]:
    """Return the step's row, while the claim that `step` was read with holds it."""
    return Step.objects.filter(pk=step.pk, state=RUNNING, token=step.token)
