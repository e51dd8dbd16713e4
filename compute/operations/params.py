"""The parameters of an action: what its API side, and its earlier steps, keep for its later steps.

Each action declares a frozen dataclass. In the action's row it is JSON, which another version of this program may have
written: a key that this version does not know stays in the row, a missing one has its default, and a value of a wrong
type raises msgspec.ValidationError, which names the key and both types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Self

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionParams:
    """The parameters that any action may have. A field that has its default is not written."""

    source: str = ""  # the host that the server leaves: where steps with On.SOURCE run
    destination: str = ""  # the host that the server goes to: where steps with On.DEST run
    shutdown_timeout: int | None = None  # the requested grace period of the guest in seconds; 0 is HARD
    drained_host: str = ""  # the host that handed the action's queued step back when it began to drain
    empties: str = ""  # the host whose list of drain migrations advances when this action ends

    @classmethod
    def load(cls, kept: Mapping[str, Any]) -> Self:
        """Return the parameters from the JSON of a row. Raises msgspec.ValidationError."""
        return msgspec.convert(kept, cls)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for a new row."""
        kept = msgspec.to_builtins(self)
        return {one.name: kept[one.name] for one in fields(self) if getattr(self, one.name) != _default(one)}

    def changes_since(self, old: ActionParams) -> dict[str, Any]:
        """Return the JSON of the fields in which this differs from `old`, which is of the same class."""
        before, now = msgspec.to_builtins(old), msgspec.to_builtins(self)
        return {name: value for name, value in now.items() if value != before[name]}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
