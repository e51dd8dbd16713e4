"""What a restarted process does with the steps its last life left behind: one rule per step.

Also the relay, which makes the broker expendable: whatever stays queued is sent again.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from cells.context import current_alias
from cloud import killpoints, log, metrics
from compute import actions, dispatch, journal, running
from compute.lifecycle import MAX_TRIES, OnRestart
from compute.models import HostCall, Service, Step
from compute.models.host import CONDUCTOR

logger = log.get(__name__)
BATCH = 500


def recover(worker: str, incarnation: str, in_progress: Collection[int], lane: str = "") -> int:
    """Lead out every step that is recorded as running here but is not; how many there were.

    At start that is everything the last life left. Later it catches a step whose record could not be
    written because the database was away. A process that drains gives `lane` OPS: what was begun is ended,
    though nothing new begins.
    """
    killpoints.reached("recovery.begun")
    left = Step.objects.select_related("action").filter(state=Step.State.RUNNING, worker=worker)
    ours = Q(incarnation=incarnation, pk__in=list(in_progress))
    strays = list(left.exclude(ours).order_by("started_at")[:BATCH])
    for step in strays:
        _lead_out(step, lane)
    return len(strays)


def recover_dead_conductors(me: str) -> int:
    """Take over the steps of conductors that said goodbye, or whose heartbeat ended; how many there were."""
    limit = timezone.now() - timedelta(seconds=settings.SERVICE_DOWN_TIME)
    conductors = Service.objects.filter(binary=CONDUCTOR)
    alive = conductors.filter(ended_at__isnull=True, last_seen_up__gt=limit)
    gone = conductors.filter(ended_at__isnull=False)
    living = [*_names(alive), me]
    # One that is new may have claimed a step before its first heartbeat.
    long_ago = Q(started_at__lt=limit) | Q(worker__in=_names(gone))
    stuck = Step.objects.select_related("action").filter(long_ago, state=Step.State.RUNNING, host="")
    strays = list(stuck.exclude(worker__in=living)[:BATCH])
    for step in strays:
        _lead_out(step)
    return len(strays)


def _names(conductors: QuerySet[Service]) -> list[str]:
    return [f"{CONDUCTOR}@{host}" for host in conductors.values_list("host", flat=True)]


def relay() -> int:
    """Send again what stays queued in this cell, ever less often; how many messages went out."""
    now = timezone.now()
    for step in Step.objects.filter(state=Step.State.WAITING, not_before__lte=now)[:BATCH]:
        with transaction.atomic(using=current_alias()):
            journal.go_on(step)
    due = Q(not_before__isnull=True) | Q(not_before__lte=now)
    waiting = Step.objects.filter(due, state=Step.State.QUEUED)
    late = Q(sent_at__isnull=True) | Q(sent_at__lt=now - timedelta(seconds=settings.RESEND_AFTER))
    late_ones = waiting.filter(late).order_by("queued_at", "pk")
    # Those of a host that is away a long time are many, and not due: they must not hide the others.
    to_send = [step for step in late_ones if dispatch.resend_due(step.sent_at, step.sends)][:BATCH]
    for step in to_send:
        Step.objects.filter(pk=step.pk).update(sent_at=now, sends=F("sends") + 1)
        dispatch.step(step)
    HostCall.objects.filter(expires_at__lt=now - timedelta(minutes=10)).delete()
    if to_send:
        metrics.RESENT.inc(len(to_send))
        logger.info("relay.sent_again", steps=len(to_send))
    return len(to_send)


def _lead_out(step: Step, lane: str = "") -> None:
    """One rule per step: run it again, undo, or end its action with a fault."""
    action = actions.every().get(step.action.key)
    spec = action.find(step.name) if action is not None else None
    if action is None or spec is None:  # written by a newer version than this one
        logger.warning("recovery.unknown_step", step=step.name, action=step.action.key)
        return
    rule = spec.on_restart
    logger.info(
        "recovery.step", step=step.name, server=step.server_id, rule=rule.value,
        request_id=step.action.request_id, attempts=step.attempts,
    )  # fmt: skip
    metrics.RECOVERED.labels(step.action.action, step.name, rule.value).inc()
    if rule is not OnRestart.RERUN or step.attempts >= MAX_TRIES:  # it may be what kills the worker
        running.fail_step(action, step, f"the service that ran step '{step.name}' was restarted")
        return
    with transaction.atomic(using=current_alias()):
        mine = Step.objects.filter(pk=step.pk, state=Step.State.RUNNING, incarnation=step.incarnation)
        step.lane = lane or step.lane
        if mine.update(state=Step.State.QUEUED, incarnation="", lane=step.lane, details="run again after a restart"):
            dispatch.step(step)
