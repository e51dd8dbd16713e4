"""Delete a server for good, whether or not deleted servers are kept for a while."""

from __future__ import annotations

from dataclasses import replace

from compute.actions.delete import Delete
from compute.models import Instance
from compute.operations.action import ActionRequest, ActionResponse, ServerAction
from compute.servers import deletion
from compute.shutdown import options


class ForceDelete(ServerAction):
    """Delete for good, without a grace period and never softly; also a soft-deleted server."""

    key, name, called = "forceDelete", "delete", "forceDelete"
    policy = "os_compute_api:os-deferred-delete:force"
    needs_host = False

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Submit a Delete without a grace period."""
        with deletion.marked_for_delete(instance.uuid):
            Delete().submit(instance, replace(asked, body=options.AT_ONCE))
        return ActionResponse(202)
