"""Requests for a server action, from API clients and from operators in the admin: all pass the same checks."""

from __future__ import annotations

from typing import Any

from cloud.caller import Caller
from cloud.errors import BadRequest
from compute.contract import policy, validation
from compute.contract.microversion import Version
from compute.errors import ServerLocked, ServerNotReady
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionRequest, ActionResponse, AnyAction


def parse(body: Any, version: Version) -> tuple[AnyAction, Any]:
    """Return the action that the single key of a body names, and the key's value. Raises BadRequest."""
    if not isinstance(body, dict) or len(body) != 1:
        raise BadRequest("Malformed request body")
    key, value = next(iter(body.items()))
    action = registry.keyed(key, version)
    if action is None:
        raise BadRequest(f"There is no such action: {key}")
    validation.check({key: value}, {"properties": {key: action.schema(version)}})
    return action, value


def submit(action: AnyAction, instance: Instance, asked: ActionRequest) -> ActionResponse:
    """Record the action and return the answer.

    Raises Forbidden, ServerLocked, ServerNotReady, Conflict, and what the action itself raises.
    """
    policy.check(asked.caller, action.policy, instance.project_id)
    if is_locked(action, instance, asked.caller):
        raise ServerLocked(instance.uuid)
    if action.needs_host and not instance.host:
        raise ServerNotReady(instance.uuid)
    return action.submit(instance, asked)


def is_locked(action: AnyAction, instance: Instance, caller: Caller) -> bool:
    """Return whether a lock refuses the action to the caller. An admin passes every lock."""
    return bool(action.respects_lock and instance.locked_by and not caller.is_admin)
