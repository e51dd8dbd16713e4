"""Unlock a server."""

from __future__ import annotations

from compute.contract import policy
from compute.models import Instance
from compute.operations.action import ActionParams, ActionRequest, ServerAction


class Unlock(ServerAction):
    """At once, in any state. Only an admin can remove an admin's lock."""

    key = name = "unlock"
    policy = "os_compute_api:os-lock-server:unlock"
    needs_host = False
    respects_lock = False

    def begin(self, instance: Instance, asked: ActionRequest, params: ActionParams) -> ActionParams:
        """Unlock the server. Raises Forbidden when an admin locked it."""
        if instance.locked_by == "admin":
            policy.check(asked.caller, "os_compute_api:os-lock-server:unlock:unlock_override", instance.project_id)
        Instance.objects.filter(pk=instance.pk).update(locked_by="", locked_reason=None)
        return params
