"""The shutdown options: those of a request, and those on the server itself.

An action that turns a server off declares `body = options.add_to_schema(...)` and keeps `options.asked(body)` as the
`shutdown_timeout` of its params. Nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compute.contract import validation
from compute.models import shutdown_preferences

TYPE, TIMEOUT = "shutdown_type", "shutdown_timeout"
HARD = "HARD"
SECONDS = {"between": [0, shutdown_preferences.LONGEST]}
REQUEST: dict[str, Any] = {
    TYPE: {"type": "string", "pattern": r"^(?i:hard|soft)\Z", "errorMessage": "It is HARD or SOFT."},
    TIMEOUT: SECONDS,
}
NO_CONTRADICTION = {
    "not": {
        "type": "object",
        "properties": {TYPE: {"pattern": r"^(?i:hard)\Z"}, TIMEOUT: {"between": [1, shutdown_preferences.LONGEST]}},
        "required": [TYPE, TIMEOUT],
    },
    "errorMessage": f"HARD is a {TIMEOUT} of 0: no guest can have both a HARD shutdown and time for it.",
}
AT_ONCE = {TYPE: HARD}
OWN = {shutdown_preferences.OWN: SECONDS, shutdown_preferences.PRIORITY: {"between": [-1000, 1000]}}
OWN_OR_NOT = {key: {"if": {"not": {"type": "null"}}, "then": word} for key, word in OWN.items()}


# -- in a request


def add_to_schema(body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an action's schema with the shutdown options; without `body` other fields pass, as in Nova."""
    body = body or {}
    return {**body, "properties": {**body.get("properties", {}), **REQUEST}, "allOf": [NO_CONTRADICTION]}


def of_query(query: Mapping[str, str]) -> dict[str, str]:
    """Return the shutdown options of a URL query. Raises InvalidInput."""
    said = {name: validation.check_query(name, query[name], rule) for name, rule in REQUEST.items() if name in query}
    validation.check(said, {"allOf": [NO_CONTRADICTION]})
    return said


def asked(body: Any) -> int | None:
    """Return the seconds that a request gives the guest, 0 for HARD; None without options and for SOFT alone."""
    said = body if isinstance(body, dict) else {}
    if str(said.get(TYPE, "")).upper() == HARD:
        return 0
    return int(said[TIMEOUT]) if TIMEOUT in said else None


def has_options(body: Any) -> bool:
    """Return whether a request body has shutdown options."""
    return isinstance(body, dict) and not REQUEST.keys().isdisjoint(body)


# -- on the server


def written_on(metadata: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata with the options in the body of a create or an update; null removes one."""
    new = {key: body[key] for key in OWN if key in body}
    kept = {key: value for key, value in metadata.items() if key not in new}
    return kept | {key: str(int(value)) for key, value in new.items() if value is not None}
