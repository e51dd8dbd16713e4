"""Take a server to another host with its power off meanwhile."""

from __future__ import annotations

from typing import Any

from cloud.errors import BadRequest
from compute.contract import policy
from compute.contract.microversion import Version
from compute.contract.validation import NAME
from compute.migration import cold, moves
from compute.models import Instance
from compute.operations.action import ActionRequest
from compute.shutdown import options

RULE = "os_compute_api:os-migrate-server:migrate"
HOST = {"anyOf": [{"type": "null"}, NAME]}


class Migrate(cold.ColdMove):
    """Active or stopped -> resized, in the same size, until that is confirmed or reverted."""

    key = name = "migrate"
    policy = RULE

    def schema(self, version: Version) -> dict[str, Any]:
        """A host can be named since 2.56."""
        if version < (2, 56):
            return options.add_to_schema()
        return options.add_to_schema(
            {"type": ["object", "null"], "properties": {"host": HOST}, "additionalProperties": False}
        )

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """What is wrong with a host of the caller's own choice is said at once."""
        named = asked.body if asked.microversion >= (2, 56) and isinstance(asked.body, dict) else {}
        host = named.get("host") or ""
        moves.must_support(instance)
        if host:
            policy.check(asked.caller, f"{RULE}:host")
            if host == instance.host:
                raise BadRequest("Cannot migrate to the host where the server exists.")
            moves.must_be_possible(instance, host)
        return cold.begun_at(instance, host) | options.asked(asked.body)
