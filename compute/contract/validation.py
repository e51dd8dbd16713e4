"""Validation of request bodies and queries, with Nova's error texts.

JSON schemas, because their messages are the ones that Nova's clients know (ADR 0006).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import IPv6Address
from typing import Any

import jsonschema
import orjson

from compute.errors import InvalidInput

NAME = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^(?!\s)[^\x00-\x1f\x7f]*(?<!\s)\Z"}
TAG = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": r"^[^,/\x00-\x1f\x7f]*\Z"}  # it is part of URLs
METADATA = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}\Z": {"type": "string", "maxLength": 255}},
    "additionalProperties": False,
}
BOOLEAN = {"type": ["boolean", "string"], "enum": [
    True, "True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes", "y", "t",
    False, "False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no", "n", "f"]}  # fmt: skip
NON_NEGATIVE = {"type": ["integer", "string"], "pattern": r"^[0-9]*\Z", "minimum": 0, "minLength": 1}
POSITIVE = {"type": ["integer", "string"], "pattern": r"^[0-9]*\Z", "minimum": 1, "minLength": 1}
UUID = {"type": "string", "pattern": r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\Z"}
HOSTNAME = {"type": "string", "minLength": 2, "maxLength": 63, "pattern": r"^[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]\Z"}
FQDN = {"type": "string", "minLength": 2, "maxLength": 255, "pattern": r"^[a-zA-Z0-9][a-zA-Z0-9-.]*[a-zA-Z0-9]\Z"}
IPV4 = {"type": "string", "format": "ipv4"}
IPV6 = {"type": "string", "format": "ipv6"}
NOTHING_MORE = {"additionalProperties": False}


def check(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value when it matches. Raises InvalidInput with the field, the value and the rule."""
    error = jsonschema.exceptions.best_match(_validator(orjson.dumps(schema)).iter_errors(value))
    if error is None:
        return value
    where = error.absolute_path[-1] if error.absolute_path else None
    if where is None or error.validator in {"additionalProperties", "required"}:
        raise InvalidInput(_says(error))
    shown = _short(str(error.instance), 200)
    raise InvalidInput(f"Invalid input for field/attribute {where}. Value: {shown}. {_says(error)}")


def check_query(name: str, value: str, schema: Mapping[str, Any]) -> str:
    """Return the value of one query parameter when it matches. Raises InvalidInput."""
    error = jsonschema.exceptions.best_match(_validator(orjson.dumps(schema)).iter_errors(value))
    if error is not None:
        raise InvalidInput(f"Invalid input for query parameters {name}. Value: {_short(value, 200)}. {_says(error)}")
    return value


def short_ipv6(address: str) -> str:
    """Return an address as Nova stores it, and as its column fits it: `0:0::babe:220.12.22.2` is `::babe:dc0c:1602`."""
    return str(IPv6Address(address)) if address else ""


def is_true(value: Any) -> bool:
    """Return the truth of a BOOLEAN."""
    return str(value).lower() in {"true", "1", "on", "yes", "y", "t"}


def _says(error: jsonschema.ValidationError) -> str:
    """Return what is wrong, in the schema's own words where it has any."""
    rule = error.schema if isinstance(error.schema, dict) else {}
    return _short(rule.get("errorMessage", error.message), 400)


def _between(_: Any, bounds: list[int], value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """Check a whole number within bounds, which may be a string: JSON schema compares no strings."""
    is_whole = isinstance(value, int | str) and re.fullmatch("-?[0-9]{1,9}", str(value))
    if not (is_whole and bounds[0] <= int(value) <= bounds[1]):
        yield jsonschema.ValidationError(f"It is a whole number from {bounds[0]} to {bounds[1]}.")


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"between": _between})


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@cache
def _validator(schema: bytes) -> Any:
    checks = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return _Validator(orjson.loads(schema), format_checker=checks)
