"""Set the state of a server at the operator's request."""

from __future__ import annotations

from cloud.errors import Conflict
from compute import state
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionParams, ActionRequest, ServerAction
from compute.state import VmState


class ResetState(ServerAction):
    """At once. Queued steps of the server are cancelled; a step that runs ends without effect on the record."""

    key, name = "os-resetState", "resetState"
    policy = "os_compute_api:os-admin-actions:reset_state"
    body = {
        "type": "object",
        "properties": {"state": {"type": "string", "enum": ["active", "error"]}},
        "required": ["state"],
        "additionalProperties": False,
    }
    needs_host = False

    def begin(self, instance: Instance, asked: ActionRequest, params: ActionParams) -> ActionParams:
        """Set the state. Raises Conflict for `active` on a server without a host."""
        wanted = VmState(asked.body["state"])
        if wanted is VmState.ACTIVE and not instance.host:
            raise Conflict(f"Instance {instance.uuid} has no host, so it cannot be active. Delete it instead.")
        state.reset(instance, wanted)
        registry.cancel_open(instance, f"an operator reset the state to {wanted}")
        return params
