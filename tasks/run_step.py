"""Running one step of the journal: what hosts and conductors have in common."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings

from cells.context import target_cell
from cloud import failpoints, log
from compute.models import Step
from compute.operations import dispatch, journal, registry, runner, versions
from tasks import heartbeat, worker
from tasks.tracker import tracker

logger = log.get(__name__)
UNTIL_CLOSED = 0.2  # seconds our own consumer may still be open, which would receive the message again


def run(step_id: int) -> None:
    """Claim the step and run it; do nothing when it is done, not due, or not its turn. Safe to call twice."""
    me = worker.current()
    log.clear()
    if refused := tracker.refused():
        give_back(refused, me, dispatch.RUN_STEP, {"step_id": step_id})
        return
    failpoints.reached("step.received")
    heartbeat.register(me)
    with target_cell(me.alias):
        step = journal.claim(step_id, me.name, me.incarnation, host=me.host if me.driver else "", why_not=_why_not)
        if step is None:
            return
        work = tracker.here()
        if work is not None:
            work.action, work.name = step.action.action, step.name
            work.server_id, work.request_id = step.server_id, step.action.request_id
        runner.run_step(registry.named(step.action.key), step, me.driver)


def _why_not(step: Step) -> str:
    """Return why this worker cannot take a step: it is too old to know it, or has no slot for it; "" when it can."""
    known = registry.known(step)
    if known is None:
        # Only the relay can reach another conductor, or this host after its upgrade: it is to go on at short intervals.
        Step.objects.filter(pk=step.pk, state=Step.State.QUEUED).update(sends=1)
        logger.warning("step.unknown", step=step.name, action=step.action.key, server=step.server_id)
        mine, name = versions.current(), f"{step.action.key}.{step.name}"
        return f"waits for a worker that knows it: service version {mine} does not know {name}"
    _, spec = known
    # a long step of the ops queue has its slot until this task ends
    if not spec.long or step.queue != dispatch.OPS or tracker.take_long_slot():
        return ""
    return f"waits for one of the {settings.LONG_SLOTS} slots for long operations of {step.host}"


def give_back(refused: str, me: worker.Worker, name: str, kwargs: dict[str, Any]) -> None:
    """Send the message of a draining process again: another worker takes it, or the next incarnation.

    With full slots there is no need: the row is looked for when a slot becomes free.
    """
    if refused == "draining":
        time.sleep(UNTIL_CLOSED)
        dispatch.publish(me.broker_url, me.queue, name, kwargs)
