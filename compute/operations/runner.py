"""Run a step, record its end, open the step that follows. The process may be killed at any moment.

Each ending is one transaction: close the step, move the server's state, open the next step or end the action.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import tenacity
from django.db import close_old_connections, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from cells.context import current_alias
from cloud import failpoints, log, metrics
from compute.errors import StateConflict
from compute.models import InstanceAction, Step
from compute.operations import journal
from compute.operations.action import (
    DATABASE_AWAY,
    MAX_TRIES,
    AnyAction,
    OnDrain,
    StepContext,
    StepSpec,
    compensate,
    fault_of,
    open_step,
)
from compute.operations.compensation import hosts_needed
from compute.operations.params import ActionParams
from compute.operations.step import StepWaiting
from compute.virt.base import Driver, HypervisorUnavailable, PowerState, VirtError
from compute.virt.shutdown_timer import ShutdownTimer

logger = log.get(__name__)
LONGEST_PAUSE = 60.0  # seconds between two tries


def run_step(action: AnyAction, step: Step, driver: Driver | None) -> None:
    """Run a claimed step and record its end. Writes nothing once the claim is over.

    Raises the database's error when the database is away: the step stays claimed, and recovery takes it.
    """
    log.bind(
        request_id=step.action.request_id, server=step.server_id, action=step.action.action, step=step.name
    )
    good = action.is_compensation(step.name)
    failpoints.reached("undo.begun" if good else "step.claimed", step.name, step.server_id)
    run = action.context(step, driver)
    try:
        if not action.still_applies(run):
            _until_written(run, partial(_preempted, action, run))
            return
        getattr(action, step.name)(run)
        failpoints.reached("undo.worked" if good else "step.worked", step.name, step.server_id)
        power_state = _read_power_state(run)
        _until_written(run, partial(_done, action, run, power_state))
    except StepWaiting as waits:
        _until_written(run, partial(_wait_step, step, waits, run.params.shutdown_timeout))
    except journal.StepLost as lost:
        _log_claim_lost(lost)
    except DATABASE_AWAY:
        raise  # the step stays claimed in the journal, for recovery
    except Exception as error:
        logger.warning("step.failed", error=repr(error), exc_info=not isinstance(error, VirtError))
        with suppress(journal.StepLost):
            _until_written(run, partial(_failed, action, run, error))


def fail_step(action: AnyAction, step: Step, why: str) -> None:
    """Fail a step whose worker died: undo what the action did, and set a fault that users can read."""
    run = action.context(step)
    _failed(action, run, InterruptedError(why))


def give_up(action: AnyAction, step: Step, why: str) -> bool:
    """End an open step as failed for an operator; False when it changed since it was read.

    As `fail_step`, but also a step that is retried after any error ends here. In the caller's transaction.
    """
    run = action.context(step)
    if not journal.claim_for_operator(step):
        return False
    _close_failed(action, run, InterruptedError(why), None)
    return True


def hand_back(action: AnyAction, step: Step) -> bool:
    """Take a queued step off a draining host; False when it is not queued any more, or stays for the undrain."""
    spec = action.find(step.name)
    if spec is None or spec.on_drain is OnDrain.WAIT:
        return False
    why = f"host {step.host} drains"
    if spec.on_drain is OnDrain.CANCEL or action.elsewhere is None:
        return cancel_action(action, step, why)
    run = action.context(step)
    with transaction.atomic(using=current_alias()):
        if not action.still_applies(run) or not journal.cancel(step, why):
            return False
        journal.change_params(step.action, ActionParams, lambda params: replace(params, drained_host=step.host))
        open_step(step.action, action.elsewhere, run.instance)
    return True


def cancel_action(action: AnyAction, step: Step, why: str) -> bool:
    """End an action whose step is still queued, and compensate what it did; False when the step runs or must run."""
    run = action.context(step)
    fault = fault_of(InterruptedError(why))
    with transaction.atomic(using=current_alias()):
        if action.must_run(step.name) or not action.still_applies(run) or not journal.cancel(step, why):
            return False
        if action.clean_up is None:
            journal.remember_fault(step.action, fault)
        if not compensate(action, step.action, run.instance):
            _end_with_fault(action, run, fault, None)
        journal.wake_next(step.server_id)
    return True


def _log_claim_lost(why: object) -> None:
    """Another process has recovered or ended the step."""
    metrics.STEPS_LOST.inc()
    logger.warning("step.claim_lost", reason=str(why))


def _wait_step(step: Step, waits: StepWaiting, known: int | None) -> None:
    """Record that the step waits, then check whether the reason to wait has changed meanwhile.

    `known`: the shutdown timeout when this try began; another request may have shortened it since.
    """
    with transaction.atomic(using=current_alias()):
        if not waits.recorded and not journal.wait_step(step, waits.why, waits.timer, waits.seconds):
            _log_claim_lost("it was to wait")
            return
        asked = InstanceAction.objects.values_list("params", flat=True).get(pk=step.action_id)
        if ActionParams.load(asked).shutdown_timeout != known:
            journal.resume_step(step)  # another request shortened the wait meanwhile
        journal.wake_next(step.server_id)  # e.g. a delete that ends the wait, or joins it
    logger.info("step.waiting", reason=waits.why)
    waits.then()


def _done(action: AnyAction, run: StepContext, power_state: PowerState | None) -> None:
    """In one transaction close the step, and open the next one or end the action."""
    with transaction.atomic(using=current_alias()):
        transaction.on_commit(lambda: failpoints.reached("step.committed", run.step.name), using=current_alias())
        if not journal.close_step(run.step, Step.State.DONE):
            _log_claim_lost("it was done")
            return
        try:
            _advance(action, run, power_state)
        except StateConflict as conflict:
            _preempt(action, run, f"preempted: {conflict}")
        journal.wake_next(run.step.server_id)
    begun = run.step.started_at or timezone.now()
    seconds = (timezone.now() - begun).total_seconds()
    metrics.STEPS.labels(run.action.action, run.step.name, "done").inc()
    metrics.STEP_SECONDS.labels(run.action.action, run.step.name).observe(seconds)
    logger.info("step.done", seconds=round(seconds, 3))


def _advance(action: AnyAction, run: StepContext, power_state: PowerState | None) -> None:
    """Open what follows a successful step, or end the action."""
    action.record_step(run, power_state)
    if run.action.fault is not None:  # it was an undo step: there may be more to undo
        if not compensate(action, run.action, run.instance):
            _end_with_fault(action, run, run.action.fault, power_state)
        return
    following = action.next_step(run.step.name, run)
    if following is not None:
        _open(action, run, following)
        return
    action.complete(run, power_state)
    journal.close_action(run.action, outcome=run.step.details or "done")


def _preempted(action: AnyAction, run: StepContext) -> None:
    """In one transaction cancel a step whose server was taken, and compensate what its action did."""
    timer = ShutdownTimer.load(run.step.timer)
    run.note(f"preempted: {timer.words()}" if timer else "preempted before it began")
    with transaction.atomic(using=current_alias()):
        if not journal.close_step(run.step, Step.State.CANCELLED):
            return
        metrics.STEPS.labels(run.action.action, run.step.name, "cancelled").inc()
        _preempt(action, run, run.step.details)
        journal.wake_next(run.step.server_id)


def _preempt(action: AnyAction, run: StepContext, why: str) -> None:
    """Another action or an operator took the server: undo what this action did."""
    if action.clean_up is None:
        journal.remember_fault(run.action, fault_of(InterruptedError(why)))
    if not compensate(action, run.action, run.instance):
        journal.close_action(run.action, outcome=why, failed=True)


def _failed(action: AnyAction, run: StepContext, error: Exception) -> None:
    """Retry the step later, or fail it for good."""
    always = action.retry_always(run.step.name)
    if always and isinstance(error, HypervisorUnavailable):
        _wait_for_hypervisor(run, error)
        return
    again = getattr(error, "retryable", False) or always
    if again and run.step.attempts < MAX_TRIES:
        _try_again(run, error)
        return
    _close_failed(action, run, error, _read_power_state(run))


def _close_failed(action: AnyAction, run: StepContext, error: Exception, power_state: PowerState | None) -> None:
    """In one transaction fail the step for good, and compensate or end the action with a fault."""
    stack = "".join(traceback.format_exception(error))[-8000:]
    run.note(str(error) or type(error).__name__)
    with transaction.atomic(using=current_alias()):
        transaction.on_commit(lambda: failpoints.reached("step.committed", run.step.name), using=current_alias())
        if not journal.close_step(run.step, Step.State.FAILED, traceback=stack):
            _log_claim_lost(f"it failed: {error}")
            return
        metrics.STEPS.labels(run.action.action, run.step.name, "failed").inc()
        try:
            _after_failure(action, run, error, power_state)
        except StateConflict as conflict:
            _preempt(action, run, f"preempted: {conflict}")
        journal.wake_next(run.step.server_id)


def _after_failure(action: AnyAction, run: StepContext, error: Exception, power_state: PowerState | None) -> None:
    """Open the step of `after_failure`, else the undo steps one by one, else end the action."""
    following = action.after_failure(run, error)
    if following is not None:
        _open(action, run, following)
        return
    if action.clean_up is None:
        journal.remember_fault(run.action, fault_of(error))
        if compensate(action, run.action, run.instance):
            return
    action.abandon(run, error, power_state)
    journal.close_action(run.action, outcome=str(error), failed=True)


def _end_with_fault(
    action: AnyAction, run: StepContext, fault: dict[str, Any], power_state: PowerState | None
) -> None:
    """End an action that is fully undone: free the server and set its fault, unless another action has it."""
    try:
        action.abandon(run, InterruptedError(fault["message"]), power_state)
    except StateConflict as conflict:
        logger.info("step.server_busy", reason=str(conflict))
    journal.close_action(run.action, outcome=str(fault["message"]), failed=True)


def _open(action: AnyAction, run: StepContext, spec: StepSpec) -> None:
    open_step(run.action, spec, run.instance)
    if spec in action.steps:
        journal.set_needs(run.action, hosts_needed(action, run.action, spec))


def _wait_for_hypervisor(run: StepContext, error: Exception) -> None:
    """Requeue without counting a try: the hypervisor is away, and only this step can put things right."""
    waited = (timezone.now() - run.step.queued_at).total_seconds()
    seconds = min(LONGEST_PAUSE, max(2.0, waited / 4))
    why = f"waits for the hypervisor of host {run.step.host}: {error}; looks again in {seconds:.0f} s"
    with transaction.atomic(using=current_alias()):
        if journal.requeue(run.step, seconds, why, attempts=Greatest(F("attempts") - 1, 0)):
            metrics.STEPS.labels(run.action.action, run.step.name, "retried").inc()
            logger.warning("step.hypervisor_unavailable", host=run.step.host, seconds=round(waited))
            journal.wake_next(run.step.server_id)


def _try_again(run: StepContext, error: Exception) -> None:
    seconds = min(LONGEST_PAUSE, 2.0**run.step.attempts)
    with transaction.atomic(using=current_alias()):
        why = f"try {run.step.attempts}: {error}; again in {seconds:.0f} s"
        if journal.requeue(run.step, seconds, why):
            metrics.STEPS.labels(run.action.action, run.step.name, "retried").inc()
            journal.wake_next(run.step.server_id)  # a delete need not wait for the next try


def _read_power_state(run: StepContext) -> PowerState | None:
    """Return the guest's power state; None when no hypervisor answers, or the guest lives elsewhere."""
    if run.driver is None:
        return None
    try:
        seen = run.driver.power_state(run.instance.uuid)
    except VirtError:
        return None
    return None if seen is PowerState.NOSTATE and run.step.host != run.instance.host else seen


def _until_written(run: StepContext, write: Callable[[], None]) -> None:
    """Write to the cell's database, with retries for two minutes: the work is done, only its record is missing.

    Each retry first reads the rows again: a rolled-back transaction left wrong values in memory. Only a database that
    is away is tried again; what it refuses (IntegrityError, DataError) is raised.
    """

    def reconnect(attempt: tenacity.RetryCallState) -> None:
        logger.warning("step.database_unavailable", attempt=attempt.attempt_number)
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
