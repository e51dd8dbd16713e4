"""Bare metal: what a flavor requests, and what a bare-metal server cannot do.

As in Nova an extra spec requests it: `resources:CUSTOM_GOLD=1` is one node of Ironic's resource class "gold", all of
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ASKS = "resources:CUSTOM_"
CANNOT_MOVE = "bare metal cannot move"
CANNOT_COPY = "the disk of a machine cannot be made an image"
CANNOT_PAUSE = "a machine cannot be paused, nor its memory be saved"
IMPOSSIBLE = "?"  # no resource class has this name


def normalised(resource_class: str) -> str:
    """Return a node's resource class as flavors write it; "" stays, and no flavor requests it."""
    return f"CUSTOM_{re.sub('[^0-9A-Za-z]+', '_', resource_class).upper()}" if resource_class else ""


def wanted_class(extra_specs: Mapping[str, Any]) -> str:
    """Return the resource class that a flavor requests; "" for a flavor of virtual machines.

    IMPOSSIBLE for more than one machine, or for two classes: no node has that.
    """
    asked = {key.removeprefix("resources:"): str(value).strip() for key, value in extra_specs.items()
             if key.startswith(ASKS) and str(value).strip() != "0"}  # fmt: skip
    if not asked:
        return ""
    (name, amount), *others = asked.items()
    return name if amount == "1" and not others else IMPOSSIBLE


def is_asked(flavor: Mapping[str, Any]) -> bool:
    """Return whether a flavor (as a server's row has it) requests bare metal."""
    return bool(wanted_class(flavor.get("extra_specs") or {}))
