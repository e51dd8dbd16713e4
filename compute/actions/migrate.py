"""Take a server to another host with its power off meanwhile."""

from __future__ import annotations

from typing import Any

from cloud.errors import BadRequest
from compute import moving, moving_cold, policy, shutdown_words
from compute.lifecycle import Asked
from compute.microversion import Version
from compute.models import Instance
from compute.schema import NAME

RULE = "os_compute_api:os-migrate-server:migrate"
HOST = {"anyOf": [{"type": "null"}, NAME]}


class Migrate(moving_cold.ColdMove):
    """Active or stopped -> resized, in the same size, until that is confirmed or reverted."""

    key = name = "migrate"
    policy = RULE

    def schema(self, version: Version) -> dict[str, Any]:
        """A host can be named since 2.56."""
        if version < (2, 56):
            return shutdown_words.with_them()
        return shutdown_words.with_them(
            {"type": ["object", "null"], "properties": {"host": HOST}, "additionalProperties": False}
        )

    def prepare(self, instance: Instance, asked: Asked) -> dict[str, Any]:
        """What is wrong with a host of the caller's own choice is said at once."""
        named = asked.body if asked.microversion >= (2, 56) and isinstance(asked.body, dict) else {}
        host = named.get("host") or ""
        moving.must_support(instance)
        if host:
            policy.check(asked.caller, f"{RULE}:host")
            if host == instance.host:
                raise BadRequest("Cannot migrate to the host where the server exists.")
            moving.must_be_possible(instance, host)
        return moving_cold.begun_at(instance, host) | shutdown_words.asked(asked.body)
