"""What a restarted process does with the steps its last life left behind: one rule per step.

Also the relay, which makes the broker expendable: whatever stays queued is sent again.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from cells.context import current_alias
from cloud import log
from compute import actions, dispatch, lifecycle
from compute.lifecycle import OnRestart
from compute.models import HostCall, Service, Step
from compute.models.host import CONDUCTOR

logger = log.get(__name__)
BATCH = 500
CLAIM_TIME = timedelta(seconds=30)  # between a claim and its entry in the tracker, at the most


def recover(worker: str, incarnation: str, running: Collection[int]) -> int:
    """Lead out every step that is recorded as running here but is not; how many there were.

    At start that is everything the last life left. Later it catches a step whose record could not be
    written because the database was away; one that was claimed a moment ago is only not counted yet.
    """
    left = Step.objects.select_related("action").filter(state=Step.State.RUNNING, worker=worker)
    lately = Q(started_at__gt=timezone.now() - CLAIM_TIME)
    ours = Q(incarnation=incarnation) & (Q(pk__in=list(running)) | lately)
    strays = list(left.exclude(ours)[:BATCH])
    for step in strays:
        _lead_out(step)
    return len(strays)


def recover_dead_conductors(me: str) -> int:
    """Take over the steps of conductors whose heartbeat ended; how many there were."""
    limit = timezone.now() - timedelta(seconds=settings.SERVICE_DOWN_TIME)
    alive = Service.objects.filter(binary=CONDUCTOR, last_seen_up__gt=limit).values_list("host", flat=True)
    living = [f"{CONDUCTOR}@{host}" for host in alive] + [me]
    stuck = Step.objects.select_related("action").filter(state=Step.State.RUNNING, host="", started_at__lt=limit)
    strays = list(stuck.exclude(worker__in=living)[:BATCH])
    for step in strays:
        _lead_out(step)
    return len(strays)


def send_all_queued(host: str) -> int:
    """Send every queued step of a host again, e.g. when it starts; a message too many does no harm."""
    steps = list(Step.objects.filter(state=Step.State.QUEUED, host=host).order_by("queued_at", "pk")[:BATCH])
    for step in steps:
        dispatch.step(step)
    return len(steps)


def relay() -> int:
    """Send again what stays queued in this cell, ever less often; how many messages went out."""
    now = timezone.now()
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
        logger.info("relay.sent_again", steps=len(to_send))
    return len(to_send)


def _lead_out(step: Step) -> None:
    """One rule per step: run it again, or end its action with a fault."""
    try:
        action = actions.named(step.action.key)
        rule = action.spec(step.name).on_restart
    except KeyError:  # written by a newer version than this one
        logger.warning("recovery.unknown_step", step=step.name, action=step.action.key)
        return
    logger.info("recovery.step", step=step.name, server=step.server_id, rule=rule.value)
    if rule is OnRestart.FAIL or step.attempts >= lifecycle.MAX_TRIES:  # it may be what kills the worker
        lifecycle.fail_step(action, step, f"the service that ran step '{step.name}' was restarted")
        return
    with transaction.atomic(using=current_alias()):
        mine = Step.objects.filter(pk=step.pk, state=Step.State.RUNNING, incarnation=step.incarnation)
        if mine.update(state=Step.State.QUEUED, incarnation="", details="run again after a restart"):
            dispatch.step(step)
