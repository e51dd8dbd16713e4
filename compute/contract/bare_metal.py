"""Bare metal: what a flavor asks for, and what a server that is a whole machine cannot do.

As in Nova a flavor asks for it by an extra spec: `resources:CUSTOM_GOLD=1` is one machine of Ironic's resource class
"gold", all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ASKS = "resources:CUSTOM_"
CANNOT_MOVE = "bare metal cannot move"
CANNOT_COPY = "the disk of a machine cannot be made an image"
CANNOT_PAUSE = "a machine cannot be paused, nor its memory be saved"
IMPOSSIBLE = "?"  # no class is called so


def normalised(resource_class: str) -> str:
    """A node's resource class as flavors write it; "" stays, and is asked for by nobody."""
    return f"CUSTOM_{re.sub('[^0-9A-Za-z]+', '_', resource_class).upper()}" if resource_class else ""


def wanted_class(extra_specs: Mapping[str, Any]) -> str:
    """The class of machine a flavor asks for; "" for a flavor of virtual machines.

    More than one machine, or two classes of them, is what no node has.
    """
    asked = {key.removeprefix("resources:"): str(value).strip() for key, value in extra_specs.items()
             if key.startswith(ASKS) and str(value).strip() != "0"}  # fmt: skip
    if not asked:
        return ""
    (name, amount), *others = asked.items()
    return name if amount == "1" and not others else IMPOSSIBLE


def is_asked(flavor: Mapping[str, Any]) -> bool:
    """Whether servers of a flavor (as a server's row has it) are machines."""
    return bool(wanted_class(flavor.get("extra_specs") or {}))
