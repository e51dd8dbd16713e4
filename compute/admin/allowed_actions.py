"""The actions a server can have now, and why it cannot have the others; derived from each action's declaration."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.caller import Caller
from cloud.errors import ApiError
from compute.contract import microversion, policy
from compute.models import Instance
from compute.operations import registry, submit
from compute.operations.action import AnyAction


@dataclass(frozen=True, slots=True)
class AllowedAction:
    """An action, and why it is not allowed now; "" when it is."""

    action: AnyAction
    why_not: str

    @property
    def key(self) -> str:
        """The key of the action in the API."""
        return self.action.key


def choices(instance: Instance, caller: Caller) -> list[AllowedAction]:
    """Return every action that has a key in the API, by name. Reads the targeted cell for migrations."""
    return [AllowedAction(action, why_not(action, instance, caller)) for action in _offered()]


def none(why: str) -> list[AllowedAction]:
    """Return the same actions, none of them allowed."""
    return [AllowedAction(action, why) for action in _offered()]


def why_not(action: AnyAction, instance: Instance, caller: Caller) -> str:
    """Return why an action is not allowed now; "" when it is. Conditions on the request's body are not checked."""
    if not policy.allows(caller, action.policy, instance.project_id):
        return f"it requires the role {policy.RULES[action.policy].value}"
    if instance.deleted:
        return "the server is deleted"
    if submit.is_locked(action, instance, caller):
        return f"the server is locked by {'an admin' if instance.locked_by == 'admin' else 'its owner'}"
    if action.needs_host and not instance.host:
        return "the server has no host"
    if action.needs_host and not action.builds and instance.launched_at is None:
        return "the server was never built"
    return _state(action, instance) or _obstacle(action, instance)


def _state(action: AnyAction, instance: Instance) -> str:
    """Return why the server's state fits no move of the action."""
    moves = action.all_moves().values()
    fits = [move for move in moves if instance.vm_state in move.start]
    if moves and not fits:
        wanted = sorted({start.replace("_", " ") for move in moves for start in move.start})
        return f"the server is {instance.vm_state}; the action requires {' or '.join(wanted)}"
    task = instance.task_state
    if task is None or not fits or action.over_any_task or any(task in move.over for move in fits):
        return ""
    return f"the server is busy (task state {task})"


def _obstacle(action: AnyAction, instance: Instance) -> str:
    """Return what else is in the way: the action's own checks, with their texts."""
    try:
        action.check_obstacles(instance)
    except ApiError as refusal:
        return refusal.message.rstrip(".")
    return ""


def _offered() -> list[AnyAction]:
    every = (registry.keyed(action.key, microversion.MAXIMUM) for action in registry.every().values())
    known = {action.key: action for action in every if action is not None and not action.reads_only}
    return [known[key] for key in sorted(known, key=_by_name)]


def _by_name(key: str) -> str:
    return key.removeprefix("os-").lower()
