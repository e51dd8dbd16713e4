"""The life of a server action: submit (API) -> run a step (host worker or conductor) -> next step -> end.

Read this module first, then `runner.py`, which runs the steps. These two hold what all actions share; what is special
about one action is in `compute/actions/<name>.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, cast, get_args

from django.db import InterfaceError, OperationalError, transaction
from typing_extensions import TypeVar

from cells.context import current_alias
from cloud import failpoints
from cloud.caller import Caller, new_request_id
from cloud.errors import BadRequest
from compute import state
from compute.contract import bare_metal
from compute.contract.microversion import Version
from compute.errors import Conflict, StateConflict
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal, versions
from compute.operations.compensation import compensate, fault_of, open_step
from compute.operations.context import StepContext
from compute.operations.params import ActionParams
from compute.operations.step import OPS, REQUESTS, On, OnDrain, OnRestart, Role, StepSpec
from compute.state import Move
from compute.virt.base import Driver, PowerState

__all__ = (
    "OPS",
    "REQUESTS",
    "ActionParams",
    "ActionRequest",
    "ActionResponse",
    "AnyAction",
    "On",
    "OnDrain",
    "OnRestart",
    "Role",
    "ServerAction",
    "StepContext",
    "StepSpec",
    "compensate",
    "fault_of",
    "open_step",
)  # fmt: skip
MAX_TRIES = 8  # of a step with a retryable error: about three minutes of pauses
DATABASE_AWAY = (OperationalError, InterfaceError)  # the statement may have been executed; other errors are bugs
PREPARES = 5  # tries of `submit` while other requests change the server
P = TypeVar("P", bound=ActionParams, default=ActionParams)


@dataclass(slots=True)
class ActionRequest:
    """An API request for an action: the caller, the parameters, the microversion."""

    caller: Caller
    request_id: str = field(default_factory=new_request_id)
    body: Any = None
    microversion: tuple[int, int] = (2, 1)

    @classmethod
    def of_cloud(cls, instance: Instance, *, user_id: str = "", request_id: str = "") -> ActionRequest:
        """Return a request that the cloud makes itself, in the server's project."""
        caller = Caller(user_id[:64], project_id=instance.project_id)
        return cls(caller, request_id or new_request_id())


@dataclass(slots=True)
class ActionResponse:
    """The immediate answer of the API to an action request."""

    status: int = 202
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    server: dict[str, Any] | None = None  # the body is the server with these new columns
    # returns the answer, which takes time: called after the API has released the cell
    later: Callable[[], ActionResponse] | None = None


class ServerAction(Generic[P]):
    """One operation that a user can request on a server. A subclass declares it; this class implements it.

    `P` is the dataclass of its parameters: `class Reboot(ServerAction[RebootParams])`.
    """

    key: ClassVar[str] = ""  # in the body of POST /servers/{id}/action; "" = has no key there
    name: ClassVar[str] = ""  # in os-instance-actions
    called: ClassVar[str] = ""  # in error texts; "" = its name
    policy: ClassVar[str] = ""
    body: ClassVar[dict[str, Any]] = {}  # JSON schema of the key's value; {} accepts anything, as Nova does
    since: ClassVar[tuple[int, int]] = (2, 1)
    until: ClassVar[tuple[int, int]] = (2, 999)
    move: ClassVar[Move | None] = None
    moves: ClassVar[Mapping[str, Move]] = {}  # by kind of request, for people, where there are several
    steps: ClassVar[tuple[StepSpec, ...]] = ()
    clean_up: ClassVar[StepSpec | None] = None  # undoes all of a failed or cancelled action
    elsewhere: ClassVar[StepSpec | None] = None  # finds another host
    needs_host: ClassVar[bool] = True
    builds: ClassVar[bool] = False  # creates the guest: the server need not have been launched
    respects_lock: ClassVar[bool] = True
    unsupported_on_bare_metal: ClassVar[str] = ""  # why bare metal cannot do it; "" when it can
    is_shown: ClassVar[bool] = True  # in os-instance-actions
    reads_only: ClassVar[bool] = False
    over_any_task: ClassVar[bool] = False  # no task can go on: the server's host is fenced
    role: ClassVar[Role | None] = None

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema of the key's value at a microversion."""
        return self.body

    def prepare(self, instance: Instance, asked: ActionRequest) -> P:
        """Return the params: what the steps need beyond the server's row. Raises an API error to refuse the request.

        Runs before any transaction, and again when the server changed meanwhile.
        """
        return self.params_type()

    def move_for(self, params: P) -> Move | None:
        """Return the move; override it where the move depends on the request."""
        return self.move

    def all_moves(self) -> dict[str, Move]:
        """Return the moves that the action may make, by kind of request; "" when there is one kind."""
        return dict(self.moves) or ({"": self.move} if self.move is not None else {})

    def check_obstacles(self, instance: Instance) -> None:
        """Raise an API error when something but the server's state refuses every request now, whatever its body."""

    def unprepare(self, params: P) -> None:
        """Undo `prepare`: the action was refused, or `submit` prepares it again."""

    def begin(self, instance: Instance, asked: ActionRequest, params: P) -> P | None:
        """Stable -> busy, in the transaction that records the action. Raises Conflict, StateConflict.

        Return the params to record; None when nothing is to be recorded.
        """
        move = self.move_for(params)
        if move is not None:
            state.begin(instance, move)
        return params

    def answer(self, params: P, asked: ActionRequest) -> ActionResponse:
        """Return what the API answers once the action is recorded."""
        return ActionResponse()

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Record the action and its first step in one transaction.

        Raises Conflict when another request won or a service is too old for a step, and BadRequest when a bare-metal
        server cannot do it. The params match the server's row: if the row changed after `prepare` read it, the action
        is prepared again from the new row.
        """
        versions.check_known(self.all_steps(), instance, self.called or self.name or self.key)
        for _ in range(PREPARES):
            self._must_be_possible(instance)
            seen, params = instance.generation, self.prepare(instance, asked)
            if self._take(instance, asked, params, seen):
                return self.answer(params, asked)
            self.unprepare(params)
            instance.refresh_from_db()
        raise Conflict(f"Instance {instance.uuid} is being changed by other requests. Try again.")

    def _take(self, instance: Instance, asked: ActionRequest, params: P, seen: int) -> bool:
        """Record the action; return False, with nothing recorded, when the row's generation is not `seen` any more."""
        try:
            with transaction.atomic(using=current_alias()):
                begun = self.begin(instance, asked, params)
                if instance.generation > seen + 1:  # `begin` itself adds one
                    transaction.set_rollback(True, using=current_alias())
                    return False
                self._must_have_run(instance)
                transaction.on_commit(lambda: failpoints.reached("submit.committed"), using=current_alias())
                if begun is not None:
                    self.record(instance, asked, begun)
        except StateConflict as conflict:
            self.unprepare(params)
            raise Conflict(self.refusal(instance, conflict, params)) from conflict
        except DATABASE_AWAY:
            raise  # the COMMIT may have succeeded; else periodic/abandoned_snapshots.py undoes `prepare`
        except Exception:
            self.unprepare(params)
            raise
        return True

    def record(self, instance: Instance, asked: ActionRequest, params: P) -> InstanceAction:
        """Create the action's row and its first step, in the caller's transaction."""
        action = self.open_row(instance, asked, params)
        first = self.first_step(params)
        if first is not None:
            open_step(action, first, instance)
        else:
            journal.close_action(action, outcome="done")
        return action

    def open_row(self, instance: Instance, asked: ActionRequest, params: P) -> InstanceAction:
        """Create the action's row without a step, in the caller's transaction."""
        return journal.open_action(
            instance, name=self.name, key=type(self).__name__, request_id=asked.request_id,
            user_id=asked.caller.user_id, project_id=asked.caller.project_id, params=params,
        )  # fmt: skip

    def first_step(self, params: P) -> StepSpec | None:
        """Return the first step; None when recording the action completes it."""
        return self.steps[0] if self.steps else None

    def refusal(self, instance: Instance, conflict: StateConflict, params: P) -> str:
        """Return Nova's error text for a server that is in the wrong state."""
        move = self.move_for(params)
        wrong_vm = move is not None and conflict.vm_state not in move.start
        attribute, value = "vm_state", conflict.vm_state
        if not wrong_vm and conflict.task_state:
            attribute, value = "task_state", conflict.task_state
        name = self.called or self.name or self.key
        return f"Cannot '{name}' instance {instance.uuid} while it is in {attribute} {value}"

    def _must_be_possible(self, instance: Instance) -> None:
        """Refuse at once what a bare-metal server cannot do. Raises BadRequest."""
        if self.unsupported_on_bare_metal and bare_metal.is_asked(instance.flavor):
            name = self.called or self.name or self.key
            raise BadRequest(
                f"Cannot '{name}' instance {instance.uuid}: it is a bare-metal server, and "
                f"{self.unsupported_on_bare_metal}."
            )

    def _must_have_run(self, instance: Instance) -> None:
        """Raise Conflict for a server that was never built: it cannot be rebooted or copied, whatever its state."""
        if self.needs_host and not self.builds and instance.launched_at is None:
            name = self.called or self.name or self.key
            raise Conflict(f"Instance {instance.uuid} is in an invalid state for '{name}'")

    # -- where the step runs

    @cached_property
    def params_type(self) -> type[P]:
        """The dataclass of the action's parameters, from its class statement."""
        bases = (base for one in type(self).__mro__ for base in one.__dict__.get("__orig_bases__", ()))
        named = (arg for base in bases for arg in get_args(base) if isinstance(arg, type))
        return cast("type[P]", next(named, ActionParams))

    def context(self, step: Step, driver: Driver | None = None) -> StepContext[P]:
        """Return the context of a try of a step."""
        return StepContext(Instance.objects.get(uuid=step.server_id), step.action, step, driver, self.params_type)

    def find(self, name: str) -> StepSpec | None:
        """Return the declaration of a step; None when this version of the action does not have it."""
        return next((spec for spec in self.all_steps() if spec.name == name), None)

    def all_steps(self) -> tuple[StepSpec, ...]:
        """Return every step that this action may open, compensations and `elsewhere` included."""
        more = (self.clean_up, self.elsewhere, *(spec.undone_by for spec in self.steps))
        return (*self.steps, *(spec for spec in more if spec is not None))

    def is_compensation(self, name: str) -> bool:
        """Return whether a step undoes others: it runs even when another action took the server meanwhile."""
        good = (self.clean_up, *(spec.undone_by for spec in self.steps))
        return any(spec is not None and spec.name == name for spec in good)

    def must_run(self, name: str) -> bool:
        """Return whether a step runs even when another action took the server meanwhile.

        True for compensations and for steps behind the point of no return.
        """
        names = [spec.name for spec in self.steps]
        behind = self.steps[: names.index(name)] if name in names else ()
        return self.is_compensation(name) or any(spec.no_return for spec in behind)

    def retry_always(self, name: str) -> bool:
        """Return whether a step is retried after any error, because only it can make record and host agree."""
        return self.must_run(name)

    def still_applies(self, run: StepContext[P]) -> bool:
        """Return False once a delete, an operator or a hard reboot took the server: the step must not begin."""
        if self.must_run(run.step.name):
            return True
        move = self.move_for(run.params)
        return move is None or (not run.instance.deleted and run.instance.task_state == move.busy)

    def record_step(self, run: StepContext[P], power_state: PowerState | None) -> None:
        """Change further rows after a successful step, in the transaction that closes it. A hook."""

    def next_step(self, done: str, run: StepContext[P]) -> StepSpec | None:
        """Return the step that follows a successful one; None when the action is done."""
        names = [spec.name for spec in self.steps]
        if done not in names:  # not one of the declared sequence, e.g. `clean_up`
            return None
        following = names.index(done) + 1
        return self.steps[following] if following < len(names) else None

    def after_failure(self, run: StepContext[P], error: BaseException) -> StepSpec | None:
        """Return a step that handles the failure; None: the runner compensates, or ends the action with a fault."""
        return None

    def complete(self, run: StepContext[P], power_state: PowerState | None) -> None:
        """Busy -> done, in the transaction that closes the last step. Raises StateConflict."""
        move = self.move_for(run.params)
        if move is not None and not self.is_taken_over(run, move):
            state.finish(run.instance, move, power_state)

    def abandon(self, run: StepContext[P], error: BaseException, power_state: PowerState | None) -> None:
        """Busy -> idle with a fault, in the transaction that closes the failed step. Raises StateConflict."""
        move = self.move_for(run.params)
        if move is not None and not self.is_taken_over(run, move):
            state.abandon(run.instance, move, fault_of(error), power_state)

    def is_taken_over(self, run: StepContext[P], move: Move) -> bool:
        """Return whether a newer action of this kind has the server (HARD over HARD): that one ends the move."""
        if move.busy not in move.over:
            return False
        newer = InstanceAction.objects.filter(
            server_id=run.step.server_id, key=run.action.key, pk__gt=run.action.pk, finished_at__isnull=True
        )
        return newer.exists()


AnyAction = ServerAction[Any]  # for code to which the action's parameters do not matter
