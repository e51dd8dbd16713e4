"""The shutdown preferences of a server and of its image: the length of the grace period, and the order on a host.

"Controlled shutdown of guests" (Nova spec) for the image, "Virtual machine grace period" (KubeVirt) for the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN = "termination_grace_period_seconds"  # of a server: in its metadata, where its API shows it
OF_IMAGE = "os_shutdown_timeout"  # of an image: among its properties
PRIORITY = "shutdown_priority"  # of a server: in its metadata; lower goes first when its host goes down
LONGEST = 86_400  # seconds


def own(metadata: Mapping[str, Any]) -> int | None:
    """Return the server's own grace period in seconds; None when it has none."""
    return seconds(metadata.get(OWN))


def said(metadata: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    """Return the server's own grace period, else its image's; None: the operator's setting counts."""
    mine = own(metadata)
    return seconds(properties.get(OF_IMAGE)) if mine is None else mine


def priority(metadata: Mapping[str, Any]) -> int:
    """Return the server's shutdown priority; 0 when it has none, or one that is not a whole number."""
    try:
        return int(metadata.get(PRIORITY, 0))
    except (TypeError, ValueError):
        return 0


def seconds(word: Any) -> int | None:
    """Return a value as seconds; None when it is not a whole number from 0 to LONGEST."""
    try:
        number = int(word)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= LONGEST else None
