"""Lock a server against everything that would change it."""

from __future__ import annotations

from typing import Any

from compute.contract.microversion import Version
from compute.models import Instance
from compute.operations.action import ActionParams, ActionRequest, ServerAction

_REASON = {
    "type": ["object", "null"],
    "properties": {"locked_reason": {"type": "string", "minLength": 1, "maxLength": 255}},
    "additionalProperties": False,
}


class Lock(ServerAction):
    """At once, in any state. A lock by the project does not hold an admin; a lock by an admin holds the project."""

    key = name = "lock"
    policy = "os_compute_api:os-lock-server:lock"
    needs_host = False
    respects_lock = False

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema: a reason may be given since 2.73; before, the value is ignored."""
        return _REASON if version >= (2, 73) else {}

    def begin(self, instance: Instance, asked: ActionRequest, params: ActionParams) -> ActionParams:
        """Lock the server, and record who locked it: that decides who may unlock it."""
        owner = asked.caller.project_id == instance.project_id and not asked.caller.is_admin
        told = asked.body if isinstance(asked.body, dict) and asked.microversion >= (2, 73) else {}
        Instance.objects.filter(pk=instance.pk).update(
            locked_by="owner" if owner else "admin", locked_reason=told.get("locked_reason")
        )
        return params
