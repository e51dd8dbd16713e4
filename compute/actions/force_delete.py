"""Delete a server for good, whatever the operator does with those that are deleted."""

from __future__ import annotations

from dataclasses import replace

from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionRequest, ActionResponse, ServerAction
from compute.servers import deletion
from compute.shutdown import options


class ForceDelete(ServerAction):
    """A delete that is never a soft one, and waits for no guest; also of one that is soft-deleted."""

    key, name, called = "forceDelete", "delete", "forceDelete"
    policy = "os_compute_api:os-deferred-delete:force"
    needs_host = False

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """The delete itself carries it out."""
        with deletion.marked_for_delete(instance.uuid):
            registry.named("Delete").submit(instance, replace(asked, body=options.AT_ONCE))
        return ActionResponse(202)
