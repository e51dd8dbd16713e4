"""What a process does with the steps that a dead incarnation left running: one rule per step.

Also the relay, which makes the broker expendable: it sends the messages of queued steps again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, transaction
from django.db.models import F, Q, QuerySet

from cells import database_clock
from cells.context import current_alias
from cloud import failpoints, log, metrics
from compute.models import Service, Step
from compute.models.action import LONGEST_PAUSE
from compute.models.host import CONDUCTOR
from compute.operations import dispatch, host_request, journal, registry, runner
from compute.operations.action import MAX_TRIES, OnRestart

logger = log.get(__name__)
BATCH = 500
PAUSE = 60.0  # seconds between tries of a step that must not be given up, but may be what kills the worker


def recover(worker: str, incarnation: str, in_progress: Callable[[], Collection[int]], queue: str = "") -> int:
    """Recover the steps that the journal shows as running in this worker but that do not run; return how many.

    At start these are all steps of the last incarnation. Later it finds a step whose end could not be written because
    the database was away. `in_progress` returns the steps that this process runs; it is called after the rows were
    read, so that a step claimed meanwhile does not count as lost. A draining process passes `queue` OPS: begun steps
    are ended, though no new work begins. A superseded worker recovers nothing: the rows may belong to the newer
    process.
    """
    failpoints.reached("recovery.begun")
    if journal.newer_incarnation(worker, incarnation).exists():
        logger.warning("recovery.superseded", worker=worker, incarnation=incarnation)
        return 0
    left = list(Step.objects.select_related("action").filter(state=Step.State.RUNNING, worker=worker)[:BATCH])
    running_here = set(in_progress())
    return _recover_steps([s for s in left if s.incarnation != incarnation or s.pk not in running_here], queue)


def recover_dead_conductors(me: str) -> int:
    """Recover the steps of conductors that deregistered or whose heartbeat stopped; return how many."""
    conductors = Service.objects.filter(binary=CONDUCTOR)
    conductors.set_right()
    gone = conductors.filter(ended_at__isnull=False)
    living = [*_names(conductors.alive()), me]
    # A new conductor may have claimed a step before its first heartbeat.
    lately = database_clock.is_recent("started_at", settings.SERVICE_DOWN_TIME)
    long_ago = ~lately | Q(worker__in=_names(gone))
    stuck = Step.objects.select_related("action").filter(long_ago, state=Step.State.RUNNING, host="")
    return _recover_steps(list(stuck.exclude(worker__in=living)[:BATCH]))


def _names(conductors: QuerySet[Service]) -> list[str]:
    return [f"{CONDUCTOR}@{host}" for host in conductors.values_list("host", flat=True)]


def relay() -> int:
    """Send the messages of this cell's queued steps again, at growing intervals; return how many were sent.

    The round ends when the broker does not accept a message; what was not sent stays due. Also resumes the waiting
    steps whose time is over, and sweeps host calls.
    """
    now = database_clock.read(current_alias())
    for step in Step.objects.filter(_has_waited(now), state=Step.State.WAITING)[:BATCH]:
        with transaction.atomic(using=current_alias()):
            journal.resume_step(step)
    host_request.sweep()
    # A host that is away for long has many steps; they are not due, and must not fill the batch.
    late = Step.objects.due(dispatch.is_due_again(now))
    sent = [step.pk for step in dispatch.send(late.order_by("queued_at", "pk")[:BATCH])]
    if sent:
        late.filter(pk__in=sent).update(sent_at=now, sends=F("sends") + 1)
        metrics.RESENT.inc(len(sent))
        logger.info("relay.resent", steps=len(sent))
    return len(sent)


def _recover_steps(strays: Collection[Step], queue: str = "") -> int:
    """Recover each step by itself: one that fails is logged, counted and marked, and does not hold up the others.

    Return how many were recovered; the others are tried again in the next round. Raises the database's error when the
    database was away and no step could be recovered.
    """
    led_out, away, again = 0, None, []
    for step in strays:
        try:
            again += [step] if _recover_step(step, queue) else []
        except (OperationalError, InterfaceError) as error:  # it is away, or a process that hangs locks this row
            close_old_connections()
            away = error
        except Exception as error:
            _mark_failed(step, error)
        else:
            led_out += 1
    dispatch.send(again)
    if away is not None and not led_out:
        raise away
    return led_out


def _mark_failed(step: Step, error: Exception) -> None:
    """Show the failure with the step (`manage.py operations --stuck`), in the log and in the metrics."""
    logger.error(
        "recovery.failed", step=step.name, server=step.server_id, action=step.action.key, exc_info=error,
    )  # fmt: skip
    metrics.RECOVERY_FAILED.labels("step").inc()
    same_claim = Step.objects.filter(pk=step.pk, state=step.state, token=step.token)
    same_claim.update(details=f"recovery failed, and is tried again: {error!r}"[:2000])


def _has_waited(now: datetime) -> Q:
    """Return the filter for waiting steps whose time is over.

    A step without a timer never waits longer than LONGEST_PAUSE: a later time was set by a wrong clock.
    """
    ahead = Q(timer__isnull=True, not_before__gt=now + timedelta(seconds=LONGEST_PAUSE))
    return Q(not_before__lte=now) | ahead


def _recover_step(step: Step, queue: str = "") -> bool:
    """Apply the step's OnRestart rule; return True when it is queued again and its message is to be sent."""
    known = registry.known(step)
    if known is None:
        logger.warning("recovery.unknown_step", step=step.name, action=step.action.key)
        return False
    action, spec = known
    rule = spec.on_restart
    logger.info(
        "recovery.step_recovered", step=step.name, server=step.server_id, rule=rule.value,
        request_id=step.action.request_id, attempts=step.attempts,
    )  # fmt: skip
    metrics.RECOVERED.labels(step.action.action, step.name, rule.value).inc()
    worn_out = step.attempts >= MAX_TRIES  # it may be what kills the worker
    if rule is not OnRestart.RERUN or (worn_out and not action.retry_always(step.name)):
        runner.fail_step(action, step, f"the service that ran step '{step.name}' was restarted")
        return False
    mine = Step.objects.filter(pk=step.pk, state=Step.State.RUNNING, token=step.token)
    step.queue = queue or step.queue
    due = database_clock.now(PAUSE) if worn_out else None
    details = f"run again after restart {step.attempts}" if worn_out else "run again after a restart"
    return bool(mine.update(state=Step.State.QUEUED, queue=step.queue, details=details, not_before=due, **journal.FREE))
