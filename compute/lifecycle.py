"""The life of a server action: submit (API side) -> run a step (host side) -> next step -> end.

Read this first. What is special about one action is in `compute/actions/<name>.py`; everything they
have in common is here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import tenacity
from django.db import DatabaseError, close_old_connections, transaction
from django.utils import timezone

from cells.context import current_alias
from cloud import log
from cloud.caller import Caller
from compute import dispatch, journal, state
from compute.errors import Conflict, StateConflict
from compute.microversion import Version
from compute.models import Instance, InstanceAction, Step
from compute.state import Move
from compute.virt.base import Driver, PowerState, VirtError

logger = log.get(__name__)
REQUESTS, OPS = dispatch.REQUESTS, dispatch.OPS
MAX_TRIES = 8  # of a step that fails in a way worth trying again: about four minutes


class On(StrEnum):
    """Where a step runs."""

    HOST = "host"  # the server's host
    CONDUCTOR = "conductor"  # any conductor of the cell


class OnRestart(StrEnum):
    """What a restarted worker does with a step its last life left running."""

    RERUN = "rerun"  # the step is idempotent: run it again
    FAIL = "fail"  # end the action with a fault the user can read


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One part of an action: the method of the action that does it, and where."""

    name: str
    event: str  # the name Nova's clients see in os-instance-actions
    on: On = On.HOST
    lane: str = REQUESTS
    on_restart: OnRestart = OnRestart.RERUN


@dataclass(slots=True)
class Asked:
    """An API request for an action: who, what, at which microversion."""

    caller: Caller
    request_id: str
    body: Any = None
    microversion: tuple[int, int] = (2, 1)


@dataclass(slots=True)
class Answer:
    """What the API answers at once."""

    status: int = 202
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One try of one step: what a step's method works with."""

    instance: Instance
    action: InstanceAction
    step: Step
    driver: Driver | None

    @property
    def params(self) -> dict[str, Any]:
        """What the API side recorded for the steps."""
        return self.action.params

    @property
    def hypervisor(self) -> Driver:
        """The driver; only host steps have one."""
        if self.driver is None:
            raise RuntimeError(f"step {self.step.name} runs where there is no hypervisor")
        return self.driver

    def note(self, text: str) -> None:
        """One line for people, shown with the step."""
        self.step.details = text[:2000]

    def deadline(self, seconds: float) -> datetime:
        """The end of this step's time: fixed at its first try, whatever restarts in between."""
        return journal.fix_deadline(self.step, seconds)


class ServerAction:
    """One thing a user may ask of a server. A subclass declares; this class carries it out."""

    key: ClassVar[str] = ""  # in the body of POST /servers/{id}/action; "" = not asked for that way
    name: ClassVar[str] = ""  # in os-instance-actions
    policy: ClassVar[str] = ""
    body: ClassVar[dict[str, Any]] = {}  # JSON schema of the key's value; {} takes anything, as Nova does
    since: ClassVar[tuple[int, int]] = (2, 1)
    until: ClassVar[tuple[int, int]] = (2, 999)
    move: ClassVar[Move | None] = None
    steps: ClassVar[tuple[StepSpec, ...]] = ()
    clean_up: ClassVar[StepSpec | None] = None  # makes good what a failed or cancelled action began
    needs_host: ClassVar[bool] = True
    minds_lock: ClassVar[bool] = True

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """The JSON schema of the key's value at a microversion."""
        return self.body

    def prepare(self, instance: Instance, asked: Asked) -> dict[str, Any]:
        """What the steps need to know beyond the server's row; may refuse. Before any transaction."""
        return {}

    def move_for(self, params: dict[str, Any]) -> Move | None:
        """The move, where it depends on what was asked."""
        return self.move

    def unprepare(self, params: dict[str, Any]) -> None:
        """Take back what `prepare` did, after the action was refused."""

    def begin(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> None:
        """Stable -> busy, in the transaction that records the action. Raises Conflict."""
        move = self.move_for(params)
        if move is not None:
            state.begin(instance, move)

    def answer(self, params: dict[str, Any], asked: Asked) -> Answer:
        """What the API answers once the action is recorded."""
        return Answer()

    def submit(self, instance: Instance, asked: Asked) -> Answer:
        """Record the action and its first step in one transaction. Raises Conflict when another won."""
        params = self.prepare(instance, asked)
        try:
            with transaction.atomic(using=current_alias()):
                self.begin(instance, asked, params)
                self._must_have_run(instance)
                self.record(instance, asked, params)
        except StateConflict as conflict:
            self.unprepare(params)
            raise Conflict(self.refusal(instance, conflict, params)) from conflict
        except Exception:
            self.unprepare(params)
            raise
        return self.answer(params, asked)

    def record(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> InstanceAction:
        """The action's row and its first step, in the caller's transaction."""
        action = journal.open_action(
            instance, name=self.name, key=type(self).__name__, request_id=asked.request_id,
            user_id=asked.caller.user_id, project_id=asked.caller.project_id, params=params,
        )  # fmt: skip
        if self.steps:
            open_step(action, self.steps[0], instance)
        else:
            journal.close_action(action, outcome="done")
        return action

    def refusal(self, instance: Instance, conflict: StateConflict, params: dict[str, Any]) -> str:
        """Nova's words for a server that is in the wrong state."""
        move = self.move_for(params)
        wrong_vm = move is not None and conflict.vm_state not in move.start
        attribute, value = "vm_state", conflict.vm_state
        if not wrong_vm and conflict.task_state:
            attribute, value = "task_state", conflict.task_state
        name = self.name or self.key
        return f"Cannot '{name}' instance {instance.uuid} while it is in {attribute} {value}"

    def _must_have_run(self, instance: Instance) -> None:
        """What was never built cannot be rebooted, started or copied, whatever its state says."""
        if self.needs_host and instance.launched_at is None:
            name = self.name or self.key
            raise Conflict(f"Instance {instance.uuid} is in an invalid state for '{name}'")

    # -- where the step runs

    def spec(self, name: str) -> StepSpec:
        """The declaration of a step. Raises KeyError for a step no version of this action knows."""
        return {spec.name: spec for spec in self.all_steps()}[name]

    def all_steps(self) -> tuple[StepSpec, ...]:
        """Every step this action may open, also those off the main road."""
        return self.steps if self.clean_up is None else (*self.steps, self.clean_up)

    def is_wanted(self, run: Run) -> bool:
        """False once a delete, an operator or a hard reboot took the server: then no step begins."""
        if self.clean_up is not None and run.step.name == self.clean_up.name:
            return True
        move = self.move_for(run.params)
        return move is None or (not run.instance.deleted and run.instance.task_state == move.busy)

    def next_step(self, done: str, run: Run) -> StepSpec | None:
        """What follows a step that went well; None when the action is done."""
        names = [spec.name for spec in self.steps]
        if done not in names:  # it made good what another one left
            return None
        following = names.index(done) + 1
        return self.steps[following] if following < len(names) else None

    def after_failure(self, run: Run, error: BaseException) -> StepSpec | None:
        """A step that makes good what a failed one left, or None: the action ends with a fault."""
        return None

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """Busy -> done, in the transaction that closes the last step. Raises StateConflict."""
        move = self.move_for(run.params)
        if move is not None:
            state.finish(run.instance, move, power_state)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """Busy -> idle with a fault, in the transaction that closes the failed step."""
        move = self.move_for(run.params)
        if move is not None:
            state.abandon(run.instance, move, fault_of(error), power_state)


def open_step(action: InstanceAction, spec: StepSpec, instance: Instance) -> Step:
    """Journal a declared step for where it is to run."""
    host = instance.host if spec.on is On.HOST else ""
    return journal.open_step(action, name=spec.name, event=spec.event, host=host, lane=spec.lane)


def run_step(action: ServerAction, step: Step, driver: Driver | None) -> None:
    """Run a claimed step to its end and record it. Safe at every moment to be killed."""
    instance = Instance.objects.get(uuid=step.server_id)
    run = Run(instance, step.action, step, driver)
    log.bind(
        request_id=step.action.request_id, server=instance.uuid, action=step.action.action, step=step.name
    )
    begun = timezone.now()
    if not action.is_wanted(run):
        _persistently(partial(_preempted, action, run))
        return
    try:
        getattr(action, step.name)(run)
    except DatabaseError:
        raise  # the step stays ours in the journal; recovery leads it out
    except Exception as error:
        logger.warning("step.failed", error=repr(error), exc_info=not isinstance(error, VirtError))
        _persistently(partial(_failed, action, run, error))
    else:
        power_state = _look(run)
        _persistently(partial(_done, action, run, power_state))
        logger.info("step.done", seconds=round((timezone.now() - begun).total_seconds(), 3))


def fail_step(action: ServerAction, step: Step, why: str) -> None:
    """End a step that nobody runs any more (its worker died), with a fault the user can read."""
    run = Run(Instance.objects.get(uuid=step.server_id), step.action, step, None)
    _failed(action, run, InterruptedError(why))


def fault_of(error: BaseException) -> dict[str, Any]:
    """The `fault` of a server that failed: a short message for users, the details for admins."""
    message = str(error) or type(error).__name__
    return {
        "code": 500,
        "message": message[:255],
        "details": "".join(traceback.format_exception(error))[-4000:],
        "created": timezone.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _done(action: ServerAction, run: Run, power_state: PowerState | None) -> None:
    """One transaction: close the step, open the next one or end the action."""
    with transaction.atomic(using=current_alias()):
        if not journal.close_step(run.step, Step.State.DONE):
            logger.warning("step.not_ours_any_more")
            return
        following = action.next_step(run.step.name, run)
        try:
            if following is not None:
                open_step(run.action, following, run.instance)
            else:
                action.complete(run, power_state)
                journal.close_action(run.action, outcome=run.step.details or "done")
        except StateConflict as conflict:
            journal.close_action(run.action, outcome=f"preempted: {conflict}", failed=True)
        journal.wake_next(run.step.server_id)


def _preempted(action: ServerAction, run: Run) -> None:
    """One transaction: a step that came too late is cancelled; what its action made already is made good."""
    run.note("preempted before it began")
    with transaction.atomic(using=current_alias()):
        if not journal.close_step(run.step, Step.State.CANCELLED):
            return
        if action.clean_up is not None:
            open_step(run.action, action.clean_up, run.instance)
        else:
            journal.close_action(run.action, outcome=run.step.details, failed=True)
        journal.wake_next(run.step.server_id)


def _failed(action: ServerAction, run: Run, error: Exception) -> None:
    """One transaction: try again later, make good, or end the action with a fault."""
    if getattr(error, "retryable", False) and run.step.attempts < MAX_TRIES:
        _try_again(run, error)
        return
    power_state = _look(run)
    stack = "".join(traceback.format_exception(error))[-8000:]
    run.note(str(error) or type(error).__name__)
    with transaction.atomic(using=current_alias()):
        if not journal.close_step(run.step, Step.State.FAILED, traceback=stack):
            logger.warning("step.not_ours_any_more")
            return
        try:
            following = action.after_failure(run, error)
            if following is not None:
                open_step(run.action, following, run.instance)
            else:
                action.abandon(run, error, power_state)
                journal.close_action(run.action, outcome=str(error), failed=True)
        except StateConflict as conflict:
            journal.close_action(run.action, outcome=f"preempted: {conflict}", failed=True)
        journal.wake_next(run.step.server_id)


def _try_again(run: Run, error: Exception) -> None:
    seconds = min(60.0, 2.0**run.step.attempts)
    with transaction.atomic(using=current_alias()):
        why = f"try {run.step.attempts}: {error}; again in {seconds:.0f} s"
        if journal.requeue(run.step, seconds, why):
            journal.wake_next(run.step.server_id)  # a delete need not wait for the next try


def _look(run: Run) -> PowerState | None:
    """What the hypervisor says the guest is doing now; None when there is nobody to ask."""
    if run.driver is None:
        return None
    try:
        return run.driver.power_state(run.instance.uuid)
    except VirtError:
        return None


def _persistently(write: Callable[[], None]) -> None:
    """Write to the cell's database, trying for two minutes: the work is done, only its record is missing."""

    def reconnect(attempt: tenacity.RetryCallState) -> None:
        logger.warning("step.database_away", attempt=attempt.attempt_number)
        close_old_connections()

    tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(DatabaseError),
        wait=tenacity.wait_random_exponential(max=5),
        stop=tenacity.stop_after_delay(120),
        before_sleep=reconnect,
        reraise=True,
    )(write)
