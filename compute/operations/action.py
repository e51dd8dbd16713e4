"""The life of a server action: submit (API side) -> run a step (host side) -> next step -> end.

Read this first, then `running.py`, which carries steps out. What is special about one action is in
`compute/actions/<name>.py`; everything they have in common is in these two.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.db import Error, InterfaceError, OperationalError, close_old_connections, transaction
from django.utils import timezone

from cells.context import current_alias
from cells.query_deadline import cut_after
from cloud import failpoints
from cloud.caller import Caller
from cloud.errors import BadRequest
from compute import state
from compute.contract import bare_metal
from compute.contract.microversion import Version
from compute.errors import Conflict, StateConflict
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal
from compute.operations.step import OPS, REQUESTS, On, OnDrain, OnRestart, StepSpec
from compute.state import Move
from compute.virt.base import Driver, PowerState

__all__ = (
    "OPS",
    "REQUESTS",
    "ActionRequest",
    "ActionResponse",
    "On",
    "OnDrain",
    "OnRestart",
    "ServerAction",
    "StepContext",
    "StepSpec",
    "compensate",
    "fault_of",
    "open_step",
)  # fmt: skip
MAX_TRIES = 8  # of a step that fails in a way worth trying again: about four minutes
DATABASE_AWAY = (OperationalError, InterfaceError)  # a statement may have been done all the same; others are bugs
PREPARES = 5  # times a request is prepared anew because its server changed meanwhile
ASK_SECONDS = 5.0  # the database may take to say whether a step is still ours


@dataclass(slots=True)
class ActionRequest:
    """An API request for an action: who, what, at which microversion."""

    caller: Caller
    request_id: str
    body: Any = None
    microversion: tuple[int, int] = (2, 1)


@dataclass(slots=True)
class ActionResponse:
    """What the API answers at once."""

    status: int = 202
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    server: dict[str, Any] | None = None  # the body is the server, as it will be with these columns
    # the answer itself, which takes time: asked for when the cell is let go
    later: Callable[[], ActionResponse] | None = None


@dataclass(slots=True)
class StepContext:
    """One try of one step: what a step's method works with.

    Whatever the method writes, in the cell or on the global side, it writes inside `fenced()`.
    """

    instance: Instance
    action: InstanceAction
    step: Step
    driver: Driver | None
    confirmed_at: float = field(default_factory=time.monotonic)  # when the claim was last seen to hold

    @property
    def params(self) -> dict[str, Any]:
        """What the API side recorded for the steps."""
        return self.action.params

    @property
    def hypervisor(self) -> Driver:
        """The driver, for the next effect on the hypervisor; only host steps have one.

        The claim's token is checked in the database first: ask for it anew after anything that takes long. Raises
        StepLost when the claim is over; what the database raised when it does not answer and the last check is
        older than the lease (SERVICE_DOWN_TIME), for the step may have been led out in that time.
        """
        if self.driver is None:
            raise RuntimeError(f"step {self.step.name} runs where there is no hypervisor")
        self._must_be_ours()
        return self.driver

    def fenced(self) -> AbstractContextManager[None]:
        """A transaction of the cell in which this try still holds its step. Raises StepLost."""
        return journal.fenced(self.step)

    def change_params(self, **changes: Any) -> None:
        """Write some params of the action while the step is ours. Raises StepLost."""
        with self.fenced():
            journal.change_params(self.action, **changes)

    def reload(self) -> None:
        """Take server and action from their rows: what they said in a transaction that was rolled back is not so."""
        self.instance = Instance.objects.get(uuid=self.step.server_id)
        self.action.refresh_from_db()

    def _must_be_ours(self) -> None:
        asked_at = time.monotonic()
        try:
            with cut_after(current_alias(), ASK_SECONDS):
                ours = journal.is_ours(self.step)
        except Error:
            close_old_connections()
            if time.monotonic() - self.confirmed_at > settings.SERVICE_DOWN_TIME:
                raise
            return
        if not ours:
            raise journal.StepLost(f"step {self.step.pk} ({self.step.name}) is not ours any more")
        self.confirmed_at = asked_at

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
    called: ClassVar[str] = ""  # in refusals; "" = its name
    policy: ClassVar[str] = ""
    body: ClassVar[dict[str, Any]] = {}  # JSON schema of the key's value; {} takes anything, as Nova does
    since: ClassVar[tuple[int, int]] = (2, 1)
    until: ClassVar[tuple[int, int]] = (2, 999)
    move: ClassVar[Move | None] = None
    steps: ClassVar[tuple[StepSpec, ...]] = ()
    clean_up: ClassVar[StepSpec | None] = None  # makes good what a failed or cancelled action began
    elsewhere: ClassVar[StepSpec | None] = None  # looks for another host
    needs_host: ClassVar[bool] = True
    builds: ClassVar[bool] = False  # makes the guest, so there need not have been one
    respects_lock: ClassVar[bool] = True
    unsupported_on_bare_metal: ClassVar[str] = ""  # why a bare-metal server cannot do it; "" when it can
    is_shown: ClassVar[bool] = True  # in os-instance-actions

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """The JSON schema of the key's value at a microversion."""
        return self.body

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """What the steps need to know beyond the server's row; may refuse. Before any transaction."""
        return {}

    def move_for(self, params: dict[str, Any]) -> Move | None:
        """The move, where it depends on what was asked."""
        return self.move

    def unprepare(self, params: dict[str, Any]) -> None:
        """Take back what `prepare` did, after the action was refused."""

    def begin(self, instance: Instance, asked: ActionRequest, params: dict[str, Any]) -> None:
        """Stable -> busy, in the transaction that records the action. Raises Conflict."""
        move = self.move_for(params)
        if move is not None:
            state.begin(instance, move)

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """What the API answers once the action is recorded."""
        return ActionResponse()

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Record the action and its first step in one transaction. Raises Conflict when another won, BadRequest.

        What `prepare` remembers of the server is so when the server is taken: if the row changed between the two,
        it is prepared anew from the row.
        """
        for _ in range(PREPARES):
            self._must_be_possible(instance)
            seen, params = instance.generation, self.prepare(instance, asked)
            if self._take(instance, asked, params, seen):
                return self.answer(params, asked)
            self.unprepare(params)
            instance.refresh_from_db()
        raise Conflict(f"Instance {instance.uuid} is being changed by other requests. Try again.")

    def _take(self, instance: Instance, asked: ActionRequest, params: dict[str, Any], seen: int) -> bool:
        """False, and nothing is recorded, when the server's row is not as it was `seen` (its generation)."""
        try:
            with transaction.atomic(using=current_alias()):
                self.begin(instance, asked, params)
                if instance.generation > seen + 1:  # one change is the one that `begin` made
                    transaction.set_rollback(True, using=current_alias())
                    return False
                self._must_have_run(instance)
                transaction.on_commit(lambda: failpoints.reached("submit.committed"), using=current_alias())
                self.record(instance, asked, params)
        except StateConflict as conflict:
            self.unprepare(params)
            raise Conflict(self.refusal(instance, conflict, params)) from conflict
        except DATABASE_AWAY:
            raise  # the COMMIT may have been done: what was prepared is looked after later (scheduler/unfilled.py)
        except Exception:
            self.unprepare(params)
            raise
        return True

    def record(self, instance: Instance, asked: ActionRequest, params: dict[str, Any]) -> InstanceAction:
        """The action's row and its first step, in the caller's transaction."""
        action = journal.open_action(
            instance, name=self.name, key=type(self).__name__, request_id=asked.request_id,
            user_id=asked.caller.user_id, project_id=asked.caller.project_id, params=params,
        )  # fmt: skip
        first = self.first_step(params)
        if first is not None:
            open_step(action, first, instance)
        else:
            journal.close_action(action, outcome="done")
        return action

    def first_step(self, params: dict[str, Any]) -> StepSpec | None:
        """Where it begins; None when all is done with its record."""
        return self.steps[0] if self.steps else None

    def refusal(self, instance: Instance, conflict: StateConflict, params: dict[str, Any]) -> str:
        """Nova's words for a server that is in the wrong state."""
        move = self.move_for(params)
        wrong_vm = move is not None and conflict.vm_state not in move.start
        attribute, value = "vm_state", conflict.vm_state
        if not wrong_vm and conflict.task_state:
            attribute, value = "task_state", conflict.task_state
        name = self.called or self.name or self.key
        return f"Cannot '{name}' instance {instance.uuid} while it is in {attribute} {value}"

    def _must_be_possible(self, instance: Instance) -> None:
        """Whoever has a machine is told at once what it cannot do."""
        if self.unsupported_on_bare_metal and bare_metal.is_asked(instance.flavor):
            name = self.called or self.name or self.key
            raise BadRequest(
                f"Cannot '{name}' instance {instance.uuid}: it is a bare-metal server, and "
                f"{self.unsupported_on_bare_metal}."
            )

    def _must_have_run(self, instance: Instance) -> None:
        """What was never built cannot be rebooted, started or copied, whatever its state says."""
        if self.needs_host and not self.builds and instance.launched_at is None:
            name = self.called or self.name or self.key
            raise Conflict(f"Instance {instance.uuid} is in an invalid state for '{name}'")

    # -- where the step runs

    def find(self, name: str) -> StepSpec | None:
        """The declaration of a step; None for one this version of the action does not know."""
        return next((spec for spec in self.all_steps() if spec.name == name), None)

    def all_steps(self) -> tuple[StepSpec, ...]:
        """Every step this action may open, also those off the main road."""
        more = (self.clean_up, self.elsewhere, *(spec.undone_by for spec in self.steps))
        return (*self.steps, *(spec for spec in more if spec is not None))

    def is_compensation(self, name: str) -> bool:
        """Whether a step takes back what others did: it runs whoever took the server meanwhile."""
        good = (self.clean_up, *(spec.undone_by for spec in self.steps))
        return any(spec is not None and spec.name == name for spec in good)

    def must_run(self, name: str) -> bool:
        """Whether a step runs whoever took the server meanwhile: it makes good, or there is no return before it."""
        names = [spec.name for spec in self.steps]
        behind = self.steps[: names.index(name)] if name in names else ()
        return self.is_compensation(name) or any(spec.no_return for spec in behind)

    def retry_always(self, name: str) -> bool:
        """Whether only this step can bring things in order, so that it is tried again whatever went wrong."""
        return self.must_run(name)

    def still_applies(self, run: StepContext) -> bool:
        """False once a delete, an operator or a hard reboot took the server: then no step begins."""
        if self.must_run(run.step.name):
            return True
        move = self.move_for(run.params)
        return move is None or (not run.instance.deleted and run.instance.task_state == move.busy)

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """What else changes on record with a step that went well, in the transaction that closes it."""

    def next_step(self, done: str, run: StepContext) -> StepSpec | None:
        """What follows a step that went well; None when the action is done."""
        names = [spec.name for spec in self.steps]
        if done not in names:  # it made good what another one left
            return None
        following = names.index(done) + 1
        return self.steps[following] if following < len(names) else None

    def after_failure(self, run: StepContext, error: BaseException) -> StepSpec | None:
        """A step that makes good what a failed one left, or None: the action ends with a fault."""
        return None

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """Busy -> done, in the transaction that closes the last step. Raises StateConflict."""
        move = self.move_for(run.params)
        if move is not None and not self.is_taken_over(run, move):
            state.finish(run.instance, move, power_state)

    def abandon(self, run: StepContext, error: BaseException, power_state: PowerState | None) -> None:
        """Busy -> idle with a fault, in the transaction that closes the failed step."""
        move = self.move_for(run.params)
        if move is not None and not self.is_taken_over(run, move):
            state.abandon(run.instance, move, fault_of(error), power_state)

    def is_taken_over(self, run: StepContext, move: Move) -> bool:
        """Whether a newer request of this kind has the server (HARD over HARD): then that one frees it."""
        if move.busy not in move.over:
            return False
        newer = InstanceAction.objects.filter(
            server_id=run.step.server_id, key=run.action.key, pk__gt=run.action.pk, finished_at__isnull=True
        )
        return newer.exists()


def open_step(action: InstanceAction, spec: StepSpec, instance: Instance) -> Step:
    """Journal a declared step for where it is to run."""
    host = instance.host if spec.on is On.HOST else str(action.params.get(spec.on.value, ""))
    return journal.open_step(action, name=spec.name, event=spec.event, host=host, queue=spec.queue)


def compensate(action: ServerAction, row: InstanceAction, instance: Instance) -> bool:
    """Open the step that takes back the newest thing an action did and has not taken back; False: nothing is left.

    In the caller's transaction. An action with a `clean_up` makes everything good in that one step.
    """
    steps = list(row.steps.order_by("-pk").values_list("name", "state", "started_at"))
    begun = {name for name, _, _ in steps}
    if action.clean_up is not None:
        if action.clean_up.name not in begun:
            open_step(row, action.clean_up, instance)
            return True
        return False
    for name, ended, started_at in steps:
        spec = action.find(name)
        if spec is None or (ended == Step.State.CANCELLED and started_at is None):
            continue
        if spec.no_return and ended == Step.State.DONE:
            return False
        if spec.undone_by is not None and spec.undo not in begun:
            open_step(row, spec.undone_by, instance)
            journal.set_needs(row, hosts_needed(action, row, spec.undone_by))
            return True
    return False


def hosts_needed(action: ServerAction, row: InstanceAction, opened: StepSpec) -> set[str]:
    """Hosts that an action of several hosts has not finished with, once it is past its requests."""
    if opened.queue != OPS or not any(spec.on in (On.SOURCE, On.DEST) for spec in action.steps):
        return set()
    at = next(i for i, spec in enumerate(action.steps) if opened.name in (spec.name, spec.undo))
    going_on = opened.name == action.steps[at].name
    behind = action.steps[:at]
    needed = list(action.steps[at:]) if going_on else [opened]
    if not any(spec.no_return for spec in behind):
        needed += [spec for spec in behind if spec.undo]
    return {str(row.params.get(spec.on.value, "")) for spec in needed if spec.on in (On.SOURCE, On.DEST)} - {""}


def fault_of(error: BaseException) -> dict[str, Any]:
    """The `fault` of a server that failed: a short message for users, the details for admins."""
    message = str(error) or type(error).__name__
    return {
        "code": 500,
        "message": message[:255],
        "details": "".join(traceback.format_exception(error))[-4000:],
        "created": timezone.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
