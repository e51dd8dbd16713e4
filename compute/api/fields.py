"""Helpers for values that many resources share: times, numbers, closed objects, query keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from compute.api.base import ComputeView
from compute.errors import InvalidInput

LARGEST = 0x7FFFFFFF


def moment(when: datetime | None) -> str | None:
    """Return `2026-01-02T03:04:05.000000`, the form of times in resources where Nova does not format them itself."""
    return when.isoformat(timespec="microseconds")[:26] if when else None  # strftime is slower


def parse_int(name: str, value: Any, least: int = 0) -> int:
    """Return a number of a body, which may be a string: JSON schema checks no bounds of strings.

    Raises InvalidInput below `least` or above LARGEST.
    """
    found = int(value) if len(str(value)) < 20 else LARGEST + 1
    if found < least:
        problem = f"{found} is less than the minimum of {least}"
    elif found > LARGEST:
        problem = f"{found} is greater than the maximum of {LARGEST}"
    else:
        return found
    raise InvalidInput(f"Invalid input for field/attribute {name}. Value: {value}. {problem}")


def object_schema(properties: Mapping[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    """Return the schema of an object with these keys and no others."""
    return {
        "type": "object", "properties": dict(properties), "required": list(required),
        "additionalProperties": False,
    }  # fmt: skip


def check_query_keys(view: ComputeView, *names: str) -> None:
    """Raise InvalidInput for a query key that is not one of `names`; only since 2.75."""
    if view.version < (2, 75):
        return
    for name in view.request.query_params:
        if name not in names:
            raise InvalidInput(f"Additional properties are not allowed ('{name}' was unexpected)")
