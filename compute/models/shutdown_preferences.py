"""What a server and its image say about its shutdown: how long it may take, and who goes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN = "termination_grace_period_seconds"  # of a server: in its metadata, where its API shows it
OF_IMAGE = "os_shutdown_timeout"  # of an image: among its properties
PRIORITY = "shutdown_priority"  # of a server: in its metadata; lower goes first when its host goes down
LONGEST = 86_400  # seconds


def own(metadata: Mapping[str, Any]) -> int | None:
    """The server's own grace period, if it has one."""
    return seconds(metadata.get(OWN))


def said(metadata: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    """The server's own word, else its image's; None: the operator's counts."""
    mine = own(metadata)
    return seconds(properties.get(OF_IMAGE)) if mine is None else mine


def priority(metadata: Mapping[str, Any]) -> int:
    """0 when it says nothing, or what is no whole number."""
    try:
        return int(metadata.get(PRIORITY, 0))
    except (TypeError, ValueError):
        return 0


def seconds(word: Any) -> int | None:
    """None for what is no number of seconds."""
    try:
        number = int(word)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= LONGEST else None
