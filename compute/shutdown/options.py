"""What may be said about how a server is shut down: in a request, and on the server itself.

An action that turns a server off takes the words of a request with `body = shutdown_words.with_them(…)`, and puts what
`asked(body)` gives among its params. All else follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compute.contract import validation
from compute.models import shutdown_preferences
from compute.shutdown import grace

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
    """The schema of an action's value with these words in it; none: of one that takes anything else, as in Nova."""
    body = body or {}
    return {**body, "properties": {**body.get("properties", {}), **REQUEST}, "allOf": [NO_CONTRADICTION]}


def of_query(query: Mapping[str, str]) -> dict[str, str]:
    """The same words in a URL. Raises InvalidInput."""
    said = {name: validation.check_query(name, query[name], rule) for name, rule in REQUEST.items() if name in query}
    validation.check(said, {"allOf": [NO_CONTRADICTION]})
    return said


def asked(body: Any) -> dict[str, Any]:
    """For the params of an action: how long the guest has at most. Nothing is what SOFT alone says, too."""
    said = body if isinstance(body, dict) else {}
    if str(said.get(TYPE, "")).upper() == HARD:
        return {grace.ASKED: 0}
    return {grace.ASKED: int(said[TIMEOUT])} if TIMEOUT in said else {}


def has_options(body: Any) -> bool:
    """Whether a request says anything about it."""
    return isinstance(body, dict) and not REQUEST.keys().isdisjoint(body)


# -- on the server


def written_on(metadata: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, str]:
    """The metadata with what stands beside it in the body of a create or an update; null takes it away."""
    new = {key: body[key] for key in OWN if key in body}
    kept = {key: value for key, value in metadata.items() if key not in new}
    return kept | {key: str(int(value)) for key, value in new.items() if value is not None}
