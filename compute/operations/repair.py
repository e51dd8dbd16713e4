"""What an operator can do about an open step that makes no progress: retry it now, or give it up.

In the targeted cell. Both use the engine's own paths: a retry is a message; giving up is the failure path of the
step's action, with its compensations and its fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from cells.context import current_alias
from cloud import log
from compute import state
from compute.models import Instance, Service, Step
from compute.models.host import COMPUTE, CONDUCTOR
from compute.operations import dispatch, journal, registry, runner
from compute.operations.action import AnyAction

logger = log.get(__name__)
STUCK_AFTER = 300.0  # seconds that a step is open, by default
RECOVERY_FAILED = "recovery failed"  # prefix of its details (compute/operations/recovery.py)
HIDDEN = ("traceback", "action__params")


class RepairRefused(Exception):
    """The repair was refused and nothing was changed; the text says why."""


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that has not ended, and the state of the service that is to run it."""

    step: Step
    service: str  # of its host, or of the cell's conductors: up | down | draining | drained | unknown

    @property
    def waits(self) -> bool:
        """Whether its next try is not due yet."""
        return self.step.not_before is not None and self.step.not_before > timezone.now()


def read(limit: int, after: Q | None = None, *, server_id: str = "", stuck_for: float | None = None) -> list[OpenStep]:
    """Return open steps, the oldest first, without columns that may hold secrets. Two queries.

    `after`: a filter, for keyset pagination. `stuck_for`: only steps that are open for more than so many seconds and
    have no deadline ahead, and steps whose recovery failed.
    """
    found = Step.objects.open(after or Q()).select_related("action").defer(*HIDDEN)
    if server_id:
        found = found.filter(server_id=server_id)
    if stuck_for is not None:
        now = timezone.now()
        old = Q(queued_at__lt=now - timedelta(seconds=stuck_for)) & ~Q(deadline__gt=now)
        found = found.filter(old | Q(details__startswith=RECOVERY_FAILED))
    steps = list(found.order_by("queued_at", "pk")[:limit])
    return with_services(steps)


def with_services(steps: Sequence[Step]) -> list[OpenStep]:
    """Return each step with the state of the service that is to run it. One query."""
    hosts = {step.host for step in steps if step.host}
    mine = Q(binary=COMPUTE, host__in=hosts) | Q(binary=CONDUCTOR)
    services = list(Service.objects.filter(mine)) if steps else []
    known = {one.host: _service_state(one) for one in services if one.binary == COMPUTE}
    conductors = {_service_state(one) for one in services if one.binary == CONDUCTOR}
    any_conductor = next((word for word in ("up", "draining", "drained", "down") if word in conductors), "unknown")
    return [OpenStep(step, known.get(step.host, "unknown") if step.host else any_conductor) for step in steps]


def find(pk: int) -> Step:
    """Return an open step. Raises RepairRefused when it does not exist or has ended."""
    step = Step.objects.select_related("action").filter(pk=pk).first()
    if step is None:
        raise RepairRefused("No such step.")
    if not step.is_open:
        ended = f" {step.finished_at:%F %T}" if step.finished_at else ""
        raise RepairRefused(f"Step {step.name} of server {step.server_id} has ended{ended}: {step.state}.")
    return step


def retry(step: Step) -> None:
    """Make the step's next try due now; a waiting step checks again what it waits for. May run twice.

    Raises RepairRefused when the step runs or is not open any more.
    """
    if step.state == Step.State.RUNNING:
        where = f"Step {step.name} of server {step.server_id} runs on {step.worker}"
        raise RepairRefused(f"{where}, so it cannot be retried.")
    with transaction.atomic(using=current_alias()):
        if step.state == Step.State.WAITING:
            changed = journal.resume_step(step)
        else:
            queued = Step.objects.filter(pk=step.pk, state=Step.State.QUEUED)
            changed = bool(queued.update(not_before=None, sent_at=timezone.now(), sends=1))
            if changed:
                dispatch.step(step)
    if not changed:
        raise RepairRefused(f"Step {step.name} of server {step.server_id} runs already.")
    logger.info("step.retried", step=step.name, server=step.server_id, host=step.host)


def give_up(step: Step, *, by: str, reason: str) -> str:
    """End a step as failed, as if its tries were used up; return what became of its action. Raises RepairRefused."""
    action = _may_be_given_up(step)
    with transaction.atomic(using=current_alias()):
        found = _end(action, step, f"given up by {by}: {reason}")
    logger.warning("step.given_up", step=step.name, server=step.server_id, host=step.host, by=by, reason=reason)
    return found


def outcome_of_giving_up(step: Step) -> str:
    """Return what `give_up` would return: do it, read the rows, roll back. Raises RepairRefused."""
    action = _may_be_given_up(step)
    with transaction.atomic(using=current_alias()):
        found = _end(action, step, "given up")
        transaction.set_rollback(True, using=current_alias())
    return found


def warning(step: Step) -> str:
    """Return what cannot be undone once the step is given up; empty for a step without such a risk."""
    action = registry.every().get(step.action.key)
    if action is None or not action.retry_always(step.name):
        return ""
    where = f"host {step.host}" if step.host else "the cell's database"
    return (
        f"Only this step can clean up on {where}. If it is given up, the record and the real state may differ "
        "permanently, and an operator must remove what is left."
    )


def is_abandoned(step: Step) -> bool:
    """Return whether the process that claimed a running step is gone, or the step's recovery failed."""
    if step.details.startswith(RECOVERY_FAILED):
        return True
    binary, _, host = step.worker.partition("@")
    service = Service.objects.filter(binary=binary, host=host).first()
    return service is None or not service.beats or service.incarnation != step.incarnation


def _may_be_given_up(step: Step) -> AnyAction:
    """Return the step's action. Raises RepairRefused."""
    action = registry.every().get(step.action.key)
    if action is None or action.find(step.name) is None:
        raise RepairRefused(
            f"Step {step.name} of {step.action.action} was written by a newer version; this version cannot undo it. "
            "Use the command of the newer version."
        )
    if step.state == Step.State.RUNNING and not is_abandoned(step):
        raise RepairRefused(
            f"Step {step.name} of server {step.server_id} runs on {step.worker}, which is up. Wait for it, or stop "
            "that process first (manage.py host stop --force)."
        )
    return action


def _end(action: AnyAction, step: Step, why: str) -> str:
    """Fail the step, in the caller's transaction; return what became of its action. Raises RepairRefused."""
    if not Instance.objects.filter(uuid=step.server_id).exists():
        return _end_without_server(step, why)
    if not runner.give_up(action, step, why):
        raise RepairRefused(f"Step {step.name} of server {step.server_id} has changed meanwhile. List the steps again.")
    return _describe_outcome(step)


def _end_without_server(step: Step, why: str) -> str:
    """End a step whose server has no row, as after a restore of the database: there is nothing to undo."""
    if not journal.claim_for_operator(step):
        raise RepairRefused(f"Step {step.name} of server {step.server_id} has changed meanwhile. List the steps again.")
    step.details = why
    journal.close_step(step, Step.State.FAILED)
    journal.close_action(step.action, outcome=why, failed=True)
    return f"{step.action.action} ends with an error: server {step.server_id} has no row in this cell."


def _describe_outcome(step: Step) -> str:
    """Describe what the rows say after the step has ended."""
    step.action.refresh_from_db()
    server = Instance.objects.get(uuid=step.server_id)
    opened = step.action.steps.filter(state=Step.State.QUEUED, pk__gt=step.pk).order_by("pk").first()
    if opened is not None:
        where = f"host {opened.host}" if opened.host else "a conductor"
        good = registry.named(step.action.key).is_compensation(opened.name)
        what = "which undoes earlier steps" if good else "which continues the action"
        return f"Step {step.name} fails; next is step {opened.name} on {where}, {what}."
    shown, task = state.status(server.vm_state, server.task_state), server.task_state or "no task"
    at = f"; its recorded host is {server.host}" if server.host else ""
    return f"Step {step.name} fails, and {step.action.action} ends with an error. The server is {shown} ({task}){at}."


def _service_state(service: Service) -> str:
    return (service.drain_state or "up") if service.is_up else "down"


def facts(one: OpenStep) -> dict[str, Any]:
    """Return the step as plain values, for scripts."""
    step, now = one.step, timezone.now()
    return {
        "server": step.server_id, "operation": step.action.action, "name": step.name, "host": step.host or None,
        "service": one.service, "state": step.state, "since": step.queued_at, "age": _seconds(now, step.queued_at),
        "tries": step.attempts, "next_try": step.not_before if one.waits else None, "deadline": step.deadline,
        "worker": step.worker or None, "details": step.details or None, "queue": step.queue,
        "request_id": step.action.request_id, "user_id": step.action.user_id, "project_id": step.action.project_id,
    }  # fmt: skip


def _seconds(now: datetime, then: datetime) -> float:
    return round(max(0.0, (now - then).total_seconds()), 1)
