"""Carrying out a step: run it, record its end, open what follows. Safe to be killed at every moment.

Each ending is one transaction: close the step, move the server's state, open the next step or end the action.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import tenacity
from django.db import close_old_connections, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from cells.context import current_alias
from cloud import killpoints, log, metrics
from compute import grace, journal
from compute.errors import StateConflict
from compute.lifecycle import (
    DATABASE_AWAY,
    MAX_TRIES,
    OnDrain,
    Run,
    ServerAction,
    StepSpec,
    fault_of,
    hosts_needed,
    make_good,
    open_step,
)
from compute.models import Instance, InstanceAction, Step
from compute.virt.base import Driver, HypervisorUnavailable, PowerState, VirtError
from compute.virt.clock import Clock

logger = log.get(__name__)
LONGEST_PAUSE = 60.0  # seconds between two tries


def run_step(action: ServerAction, step: Step, driver: Driver | None) -> None:
    """Run a claimed step to its end and record it. Writes nothing once the claim is over."""
    log.bind(
        request_id=step.action.request_id, server=step.server_id, action=step.action.action, step=step.name
    )
    good = action.makes_good(step.name)
    killpoints.reached("undo.begun" if good else "step.claimed", step.name, step.server_id)
    run = Run(Instance.objects.get(uuid=step.server_id), step.action, step, driver)
    try:
        if not action.is_wanted(run):
            _persistently(run, partial(_preempted, action, run))
            return
        getattr(action, step.name)(run)
        killpoints.reached("undo.worked" if good else "step.worked", step.name, step.server_id)
        power_state = _look(run)
        _persistently(run, partial(_done, action, run, power_state))
    except grace.Waits as waits:
        _persistently(run, partial(_park, step, waits, step.action.params.get(grace.ASKED)))
    except journal.StepLost as lost:
        _say_lost(lost)
    except DATABASE_AWAY:
        raise  # the step stays ours in the journal; recovery leads it out
    except Exception as error:
        logger.warning("step.failed", error=repr(error), exc_info=not isinstance(error, VirtError))
        with suppress(journal.StepLost):
            _persistently(run, partial(_failed, action, run, error))


def fail_step(action: ServerAction, step: Step, why: str) -> None:
    """End a step that nobody runs any more (its worker died): undo what there is, and a fault people can read."""
    run = Run(Instance.objects.get(uuid=step.server_id), step.action, step, None)
    _failed(action, run, InterruptedError(why))


def give_up(action: ServerAction, step: Step, why: str) -> bool:
    """An operator ends an open step as failed, also one that is tried until it is done; False when it has gone on.

    Steps that insist are not tried again; else it is as `fail_step`. In the caller's transaction.
    """
    run = Run(Instance.objects.get(uuid=step.server_id), step.action, step, None)
    if not journal.take(step):
        return False
    _close_failed(action, run, InterruptedError(why), None)
    return True


def hand_back(action: ServerAction, step: Step) -> bool:
    """A draining host gives a step back that nobody has begun; False when somebody has, or it has to wait."""
    spec = action.find(step.name)
    if spec is None or spec.on_drain is OnDrain.WAIT:
        return False
    why = f"host {step.host} drains"
    if spec.on_drain is OnDrain.CANCEL or action.elsewhere is None:
        return call_off(action, step, why)
    instance = Instance.objects.get(uuid=step.server_id)
    with transaction.atomic(using=current_alias()):
        if not action.is_wanted(Run(instance, step.action, step, None)) or not journal.cancel(step, why):
            return False
        journal.change_params(step.action, left=step.host)
        open_step(step.action, action.elsewhere, instance)
    return True


def call_off(action: ServerAction, step: Step, why: str) -> bool:
    """End an action whose step nobody has begun, and make good what it did; False when somebody has."""
    run = Run(Instance.objects.get(uuid=step.server_id), step.action, step, None)
    fault = fault_of(InterruptedError(why))
    with transaction.atomic(using=current_alias()):
        if action.must_run(step.name) or not action.is_wanted(run) or not journal.cancel(step, why):
            return False
        if action.clean_up is None:
            journal.remember_fault(step.action, fault)
        if not make_good(action, step.action, run.instance):
            _end_with_fault(action, run, fault, None)
        journal.wake_next(step.server_id)
    return True


def _say_lost(why: object) -> None:
    """Another process has the step, or has ended it."""
    metrics.STEPS_LOST.inc()
    logger.warning("step.not_ours_any_more", why=str(why))


def _park(step: Step, waits: grace.Waits, known: Any) -> None:
    """It waits. What it waits for may be over by now, so it is looked at once more.

    `known`: how long the guest was to have when this try began; a request in a hurry may have changed that.
    """
    with transaction.atomic(using=current_alias()):
        if not waits.parked and not journal.park(step, waits.why, waits.clock, waits.seconds):
            _say_lost("it was to wait")
            return
        asked = InstanceAction.objects.values_list("params", flat=True).get(pk=step.action_id)
        if asked.get(grace.ASKED) != known:
            journal.go_on(step)  # somebody has become hurried meanwhile
        journal.wake_next(step.server_id)  # a delete that is in a hurry, or that joins
    logger.info("step.waits", why=waits.why)
    if waits.clock is not None:
        grace.mind(step.server_id)


def _done(action: ServerAction, run: Run, power_state: PowerState | None) -> None:
    """One transaction: close the step, open the next one or end the action."""
    with transaction.atomic(using=current_alias()):
        transaction.on_commit(lambda: killpoints.reached("step.committed", run.step.name), using=current_alias())
        if not journal.close_step(run.step, Step.State.DONE):
            _say_lost("it was done")
            return
        try:
            _go_on(action, run, power_state)
        except StateConflict as conflict:
            _preempt(action, run, f"preempted: {conflict}")
        journal.wake_next(run.step.server_id)
    begun = run.step.started_at or timezone.now()
    seconds = (timezone.now() - begun).total_seconds()
    metrics.STEPS.labels(run.action.action, run.step.name, "done").inc()
    metrics.STEP_SECONDS.labels(run.action.action, run.step.name).observe(seconds)
    logger.info("step.done", seconds=round(seconds, 3))


def _go_on(action: ServerAction, run: Run, power_state: PowerState | None) -> None:
    """What follows a step that went well."""
    action.record_step(run, power_state)
    if run.action.fault is not None:  # it was an undo: perhaps there is more of it
        if not make_good(action, run.action, run.instance):
            _end_with_fault(action, run, run.action.fault, power_state)
        return
    following = action.next_step(run.step.name, run)
    if following is not None:
        _open(action, run, following)
        return
    action.complete(run, power_state)
    journal.close_action(run.action, outcome=run.step.details or "done")


def _preempted(action: ServerAction, run: Run) -> None:
    """One transaction: a step that came too late is cancelled; what its action made already is made good."""
    clock = Clock.load(run.step.clock)
    run.note(f"preempted: {clock.words()}" if clock else "preempted before it began")
    with transaction.atomic(using=current_alias()):
        if not journal.close_step(run.step, Step.State.CANCELLED):
            return
        metrics.STEPS.labels(run.action.action, run.step.name, "cancelled").inc()
        _preempt(action, run, run.step.details)
        journal.wake_next(run.step.server_id)


def _preempt(action: ServerAction, run: Run, why: str) -> None:
    """Somebody took the server: nothing of this action is left behind."""
    if action.clean_up is None:
        journal.remember_fault(run.action, fault_of(InterruptedError(why)))
    if not make_good(action, run.action, run.instance):
        journal.close_action(run.action, outcome=why, failed=True)


def _failed(action: ServerAction, run: Run, error: Exception) -> None:
    """One transaction: try again later, make good, or end the action with a fault."""
    insists = action.insists_on(run.step.name)
    if insists and isinstance(error, HypervisorUnavailable):
        _wait_for_hypervisor(run, error)
        return
    again = getattr(error, "retryable", False) or insists
    if again and run.step.attempts < MAX_TRIES:
        _try_again(run, error)
        return
    _close_failed(action, run, error, _look(run))


def _close_failed(action: ServerAction, run: Run, error: Exception, power_state: PowerState | None) -> None:
    """One transaction: the step failed for good; make good, or end the action with a fault."""
    stack = "".join(traceback.format_exception(error))[-8000:]
    run.note(str(error) or type(error).__name__)
    with transaction.atomic(using=current_alias()):
        transaction.on_commit(lambda: killpoints.reached("step.committed", run.step.name), using=current_alias())
        if not journal.close_step(run.step, Step.State.FAILED, traceback=stack):
            _say_lost(f"it failed: {error}")
            return
        metrics.STEPS.labels(run.action.action, run.step.name, "failed").inc()
        try:
            _after_failure(action, run, error, power_state)
        except StateConflict as conflict:
            _preempt(action, run, f"preempted: {conflict}")
        journal.wake_next(run.step.server_id)


def _after_failure(action: ServerAction, run: Run, error: Exception, power_state: PowerState | None) -> None:
    """The action's own way out, else every undo in turn, else the end."""
    following = action.after_failure(run, error)
    if following is not None:
        _open(action, run, following)
        return
    if action.clean_up is None:
        journal.remember_fault(run.action, fault_of(error))
        if make_good(action, run.action, run.instance):
            return
    action.abandon(run, error, power_state)
    journal.close_action(run.action, outcome=str(error), failed=True)


def _end_with_fault(action: ServerAction, run: Run, fault: dict[str, Any], power_state: PowerState | None) -> None:
    """Everything is made good; the server is free again, and says why. Whoever took it meanwhile keeps it."""
    try:
        action.abandon(run, InterruptedError(fault["message"]), power_state)
    except StateConflict as conflict:
        logger.info("step.server_taken", by=str(conflict))
    journal.close_action(run.action, outcome=str(fault["message"]), failed=True)


def _open(action: ServerAction, run: Run, spec: StepSpec) -> None:
    open_step(run.action, spec, run.instance)
    if spec in action.steps:
        journal.set_needs(run.action, hosts_needed(action, run.action, spec))


def _wait_for_hypervisor(run: Run, error: Exception) -> None:
    """A hypervisor that is away is no try of a step that alone can bring things in order: it waits, and is seen to."""
    waited = (timezone.now() - run.step.queued_at).total_seconds()
    seconds = min(LONGEST_PAUSE, max(2.0, waited / 4))
    why = f"waits for the hypervisor of host {run.step.host}: {error}; looks again in {seconds:.0f} s"
    with transaction.atomic(using=current_alias()):
        if journal.requeue(run.step, seconds, why, attempts=Greatest(F("attempts") - 1, 0)):
            metrics.STEPS.labels(run.action.action, run.step.name, "retried").inc()
            logger.warning("step.waits_for_hypervisor", host=run.step.host, waited=round(waited))
            journal.wake_next(run.step.server_id)


def _try_again(run: Run, error: Exception) -> None:
    seconds = min(LONGEST_PAUSE, 2.0**run.step.attempts)
    with transaction.atomic(using=current_alias()):
        why = f"try {run.step.attempts}: {error}; again in {seconds:.0f} s"
        if journal.requeue(run.step, seconds, why):
            metrics.STEPS.labels(run.action.action, run.step.name, "retried").inc()
            journal.wake_next(run.step.server_id)  # a delete need not wait for the next try


def _look(run: Run) -> PowerState | None:
    """What the hypervisor says the guest is doing now; None when there is nobody to ask, or it lives elsewhere."""
    if run.driver is None:
        return None
    try:
        seen = run.driver.power_state(run.instance.uuid)
    except VirtError:
        return None
    return None if seen is PowerState.NOSTATE and run.step.host != run.instance.host else seen


def _persistently(run: Run, write: Callable[[], None]) -> None:
    """Write to the cell's database, trying for two minutes: the work is done, only its record is missing.

    Each try after the first begins from the rows: what a transaction that was rolled back has left in memory is not
    so. Only a database that is away is tried again; what it refuses (IntegrityError, DataError) is raised.
    """

    def reconnect(attempt: tenacity.RetryCallState) -> None:
        logger.warning("step.database_away", attempt=attempt.attempt_number)
        close_old_connections()

    is_first = True

    def from_rows() -> None:
        nonlocal is_first
        if not is_first:
            run.reload()
        is_first = False
        write()

    tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(DATABASE_AWAY),
        wait=tenacity.wait_random_exponential(max=5),
        stop=tenacity.stop_after_delay(120),
        before_sleep=reconnect,
        reraise=True,
    )(from_rows)
