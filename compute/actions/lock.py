"""Lock a server against everything that would change it."""

from __future__ import annotations

from typing import Any

from compute.lifecycle import Asked, ServerAction
from compute.models import Instance

_REASON = {
    "type": ["object", "null"],
    "properties": {"locked_reason": {"type": "string", "minLength": 1, "maxLength": 255}},
    "additionalProperties": False,
}


class Lock(ServerAction):
    """At once, in any state; a project's lock does not hold an admin, an admin's holds the project."""

    key = name = "lock"
    policy = "os_compute_api:os-lock-server:lock"
    needs_host = False
    minds_lock = False
    until = (2, 72)

    def begin(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> None:
        """Who locked it decides who may unlock it."""
        owner = asked.caller.project_id == instance.project_id and not asked.caller.is_admin
        reason = asked.body.get("locked_reason") if isinstance(asked.body, dict) else None
        Instance.objects.filter(pk=instance.pk).update(
            locked_by="owner" if owner else "admin",
            locked_reason=reason if asked.microversion >= (2, 73) else None,
        )


class LockWithReason(Lock):
    """As Lock, with a reason (2.73)."""

    since, until = (2, 73), (2, 999)
    body = _REASON
