"""Drain requests of a service and the operations that still need it. All in the targeted cell.

The process drains itself (`tasks/drain.py`). A drain request is columns of the service record; the message only makes
the process read the record before its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Case, Count, F, Q, QuerySet, Value, When
from django.utils import timezone

from cells.context import current_alias
from compute.hosts import drain_moves, guest_shutdown
from compute.hosts.drain_moves import DrainMove
from compute.models import HostNeed, Service, Step
from compute.models.host import COMPUTE
from compute.operations import dispatch

QUEUED, RUNNING, WAITING = Step.State.QUEUED, Step.State.RUNNING, Step.State.WAITING
MOST = 500  # operations read per service


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """A begun operation that a service has to finish."""

    action: str
    step: str
    state: str  # running | waiting | queued | elsewhere
    server_id: str
    request_id: str
    host: str  # of the current step
    since: datetime  # start of the current step, or when it was queued
    deadline: datetime | None = None  # of the current step
    details: str = ""
    attempts: int = 0

    @property
    def waits_for(self) -> str:
        """What the operation waits for, as text for people."""
        if self.state == "elsewhere":
            return f"step {self.step} on {self.host or 'a conductor'}"
        if self.state == "queued":
            return f"its turn to {self.step}" + (f": {self.details}" if self.details else "")
        return self.details or f"{self.step} to end"

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the deadline of the operation; None when it has no deadline."""
        return None if self.deadline is None else max(0.0, (self.deadline - timezone.now()).total_seconds())

    def facts(self) -> dict[str, Any]:
        """Return the fields for a log record."""
        return {
            "action": self.action, "work": self.step, "server": self.server_id, "request_id": self.request_id,
            "waits_for": self.waits_for,
        }  # fmt: skip

    @property
    def blocker(self) -> str:
        """Why the operation may delay a drain for long; an empty string when there is no sign of that."""
        if self.attempts > 1:
            return f"try {self.attempts}"
        if self.deadline is None and (timezone.now() - self.since) > timedelta(minutes=5):
            return "runs for more than five minutes, and has no deadline"
        return ""


def request(service: Service, *, by: str, reason: str = "", seconds: float | None = None,
        then_exit: bool = False, moves: int = 0) -> None:  # fmt: skip
    """Record that a service shall drain: begin no new requests, finish what has begun.

    A later request replaces the earlier one; only the reason of a drain that is under way is kept when no reason is
    given.

    With `moves` the servers of the host are moved away first, at most `moves` at a time: the host is "emptying" and
    still works for the servers it has; it drains when none is left. `seconds` is the time limit for all of it (None or
    0: no limit). With `then_exit` the process exits when it is drained, and at the deadline whatever still runs;
    otherwise it stays, drained, until `undo()`.
    """
    now, host = timezone.now(), service.host
    goes_on = Q(drain_wanted=True) | Q(drain_moves__gt=0, drain_asked_at__isnull=False)
    why = Value(reason[:255]) if reason else Case(When(goes_on, then=F("drain_reason")), default=Value(""))
    with transaction.atomic(using=current_alias()):
        begins = not Service.objects.select_for_update().get(pk=service.pk).drain_state
        empty = not moves or drain_moves.is_empty(host)
        _update_request(
            service, drain_wanted=empty, drain_then_exit=then_exit, drain_by=by[:255], drain_reason=why,
            drain_asked_at=now, drain_deadline=now + timedelta(seconds=seconds) if seconds else None,
            drain_moves=moves,
        )  # fmt: skip
        if service.binary == COMPUTE:
            _update_drain_migrations(host, begins=begins, emptying=not empty)


def withdraw(service: Service, *, bring_back: int = 0) -> list[DrainMove]:
    """Record that a service takes work again; return the servers that are not brought back.

    A process that got a signal exits all the same. Moves under way go on, the other servers stay. Guests whose shutdown
    has not begun stay on. With `bring_back` the servers that were moved away return, at most `bring_back` at a time;
    the result lists those that have been moved to yet another host since, which are left there.
    """
    left_alone = []
    with transaction.atomic(using=current_alias()):
        _update_request(
            service, drain_wanted=False, drain_then_exit=False, drain_by="", drain_reason="", drain_asked_at=None,
            drain_deadline=None, drain_moves=bring_back,
        )  # fmt: skip
        if service.binary == COMPUTE:
            guest_shutdown.call_off(service.host, "the host takes work again")
            drain_moves.cancel(service.host)
            left_alone = drain_moves.request_return(service.host) if bring_back else []
            dispatch.drain_migrations_changed(service.host)
    return left_alone


def extend(service: Service, seconds: float) -> None:
    """Set the deadline of a drain to `seconds` from now; 0 removes the deadline."""
    deadline = timezone.now() + timedelta(seconds=seconds) if seconds else None
    _update_request(service, drain_deadline=deadline)


def state_of(service: Service) -> str:
    """Return the drain state: empty (takes work), emptying, draining or drained."""
    return service.drain_state


def operations(service: Service) -> list[OpenOperation]:
    """Return all operations that need this service now, the oldest first. Two queries."""
    found = [_of_step(step) for step in _steps(service).order_by("queued_at", "pk")[:MOST]]
    if service.binary == COMPUTE:
        found += elsewhere(service.host, {(one.request_id, one.server_id) for one in found})
    return found


def count(service: Service) -> int:
    """Return how many operations need this service now, including those it runs."""
    if service.binary != COMPUTE:
        return _steps(service).count()
    here = _steps(service).values_list("action_id", flat=True)
    return len({*here, *_needs(service.host).values_list("action_id", flat=True)})


def needs(host: str) -> int:
    """Return how many begun operations still need a host, besides the steps it runs now. Two queries.

    The order of the queries matters: when another host ends its step between them, the next step is queued here, and
    the second query still finds the HostNeed.
    """
    begun = Step.objects.filter(host=host, state__in=(QUEUED, WAITING), queue=dispatch.OPS)
    wanted = begun.values_list("action_id", flat=True)
    return len({*wanted, *_needs(host).values_list("action_id", flat=True)})


def waiting_operations(host: str) -> list[OpenOperation]:
    """Return the operations that need a host without a running step there: waiting steps, and steps elsewhere."""
    steps = Step.objects.filter(host=host, state=WAITING).select_related("action")
    steps = steps.defer("traceback", "action__params").order_by("deadline", "pk")[:MOST]
    return [_of_step(step) for step in steps] + elsewhere(host)


def waiting(host: str) -> int:
    """Return how many requests not yet begun wait until a host takes work again."""
    return Step.objects.filter(host=host, queue=dispatch.REQUESTS, state=QUEUED).count()


def waiting_by_host() -> dict[str, int]:
    """As `waiting()`, for every host that has such requests. One query."""
    rows = Step.objects.filter(queue=dispatch.REQUESTS, state=QUEUED).exclude(host="").order_by()
    return dict(rows.values("host").annotate(n=Count("pk")).values_list("host", "n"))


def _steps(service: Service) -> QuerySet[Step]:
    """Steps that this service runs; for a compute host also its waiting steps, and queued steps of begun operations."""
    if service.binary != COMPUTE:
        here = Q(worker=f"{service.binary}@{service.host}", host="", state=RUNNING)
    else:
        here = Q(host=service.host) & (Q(state__in=(RUNNING, WAITING)) | Q(state=QUEUED, queue=dispatch.OPS))
    return Step.objects.filter(here).select_related("action").defer("traceback", "action__params")


def _needs(host: str) -> QuerySet[HostNeed]:
    return HostNeed.objects.filter(host=host, action__finished_at__isnull=True)


def elsewhere(host: str, shown: Collection[tuple[str, str]] = ()) -> list[OpenOperation]:
    """Return the operations that need a host while their current step is on another host or on a conductor."""
    actions = [need.action_id for need in _needs(host)[:MOST]]
    steps = Step.objects.filter(action__in=actions, state__in=(QUEUED, RUNNING, WAITING)).exclude(host=host)
    steps = steps.select_related("action").defer("traceback", "action__params").order_by("queued_at", "pk")
    return [_of_step(step, "elsewhere") for step in steps
            if (step.action.request_id, step.server_id) not in shown]


def _of_step(step: Step, state: str = "") -> OpenOperation:
    return OpenOperation(
        action=step.action.action, step=step.name, state=state or step.state, server_id=step.server_id,
        request_id=step.action.request_id, host=step.host, since=step.started_at or step.queued_at,
        deadline=step.deadline, details=step.details, attempts=step.attempts,
    )  # fmt: skip


def _update_drain_migrations(host: str, *, begins: bool, emptying: bool) -> None:
    """Adapt the list of drain migrations to a new drain request."""
    if begins:
        drain_moves.forget_moved_away(host)
    if emptying:
        drain_moves.cancel_return(host)
        drain_moves.list_servers(host)
        dispatch.drain_migrations_changed(host)
    else:
        drain_moves.cancel(host)


def _update_request(service: Service, **columns: object) -> None:
    with transaction.atomic(using=current_alias()):
        Service.objects.filter(pk=service.pk).update(**columns, updated_at=timezone.now())
        if service.binary == COMPUTE:
            dispatch.service_changed(service.host)
    service.refresh_from_db()
