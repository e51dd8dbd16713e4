"""Opening the steps of an action, those that undo what it has done included."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from compute.models import Instance, InstanceAction, Step
from compute.operations import journal
from compute.operations.params import ActionParams
from compute.operations.step import OPS, On, StepSpec

if TYPE_CHECKING:
    from compute.operations.action import AnyAction


def open_step(action: InstanceAction, spec: StepSpec, instance: Instance) -> Step:
    """Add a declared step to an action, for the host or the conductor that runs it. In the caller's transaction."""
    host = instance.host if spec.on is On.HOST else _host_of(ActionParams.load(action.params), spec.on)
    return journal.open_step(action, name=spec.name, event=spec.event, host=host, queue=spec.queue)


def compensate(action: AnyAction, row: InstanceAction, instance: Instance) -> bool:
    """Open the undo step of the newest step that is not undone yet; return False when there is none.

    Runs in the caller's transaction. An action with a `clean_up` undoes everything in that one step.
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


def hosts_needed(action: AnyAction, row: InstanceAction, opened: StepSpec) -> set[str]:
    """Return the hosts that an action over a source and a destination still needs after `opened` is opened.

    Empty while the action is on the requests queue, and for actions of one host.
    """
    if opened.queue != OPS or not any(spec.on in (On.SOURCE, On.DEST) for spec in action.steps):
        return set()
    at = next(i for i, spec in enumerate(action.steps) if opened.name in (spec.name, spec.undo))
    going_on = opened.name == action.steps[at].name
    behind = action.steps[:at]
    needed = list(action.steps[at:]) if going_on else [opened]
    if not any(spec.no_return for spec in behind):
        needed += [spec for spec in behind if spec.undo]
    params = ActionParams.load(row.params)
    return {_host_of(params, spec.on) for spec in needed} - {""}


def _host_of(params: ActionParams, on: On) -> str:
    """Return the host that the params name for a step; "" for a step on a conductor or on the server's host."""
    return {On.SOURCE: params.source, On.DEST: params.destination}.get(on, "")


def fault_of(error: BaseException) -> dict[str, Any]:
    """Return the `fault` of a server that failed: a short message for users, the traceback for admins."""
    message = str(error) or type(error).__name__
    return {
        "code": 500,
        "message": message[:255],
        "details": "".join(traceback.format_exception(error))[-4000:],
        "created": timezone.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
