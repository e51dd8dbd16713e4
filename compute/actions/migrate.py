"""Cold-migrate a server: move it to another host while it is powered off."""

from __future__ import annotations

from typing import Any

from cloud.errors import BadRequest
from compute.contract import policy
from compute.contract.microversion import Version
from compute.contract.validation import NAME
from compute.migration import cold, moves
from compute.models import Instance
from compute.operations.action import ActionRequest, Role
from compute.shutdown import options

RULE = "os_compute_api:os-migrate-server:migrate"
HOST = {"anyOf": [{"type": "null"}, NAME]}


class Migrate(cold.ColdMove):
    """Active or stopped -> resized, in the same size, until the user confirms or reverts it."""

    key = name = "migrate"
    policy = RULE
    role = Role.COLD_MIGRATION

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema: a host can be named since 2.56."""
        if version < (2, 56):
            return options.add_to_schema()
        return options.add_to_schema(
            {"type": ["object", "null"], "properties": {"host": HOST}, "additionalProperties": False}
        )

    def prepare(self, instance: Instance, asked: ActionRequest) -> cold.ColdMoveParams:
        """Check a host that the caller names, and return the params. Raises BadRequest, Conflict, Forbidden."""
        named = asked.body if asked.microversion >= (2, 56) and isinstance(asked.body, dict) else {}
        host = named.get("host") or ""
        moves.must_support(instance)
        if host:
            policy.check(asked.caller, f"{RULE}:host")
            if host == instance.host:
                raise BadRequest("Cannot migrate to the host where the server exists.")
            moves.must_be_possible(instance, host)
        return cold.begun_at(instance, options.asked(asked.body), host=host)
