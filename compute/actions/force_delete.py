"""Delete a server for good, whatever the operator does with those that are deleted."""

from __future__ import annotations

from dataclasses import replace

from compute import actions, deleting, shutdown_words
from compute.lifecycle import Answer, Asked, ServerAction
from compute.models import Instance


class ForceDelete(ServerAction):
    """A delete that is never a soft one, and waits for no guest; also of one that is soft-deleted."""

    key, name, called = "forceDelete", "delete", "forceDelete"
    policy = "os_compute_api:os-deferred-delete:force"
    needs_host = False

    def submit(self, instance: Instance, asked: Asked) -> Answer:
        """The delete itself carries it out."""
        with deleting.uncounted(instance.uuid):
            actions.named("Delete").submit(instance, replace(asked, body=shutdown_words.AT_ONCE))
        return Answer(202)
