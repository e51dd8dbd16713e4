"""Which cells failed lately, so that only the first request after a failure pays for it."""

from __future__ import annotations

import threading
import time

from django.conf import settings

_lock = threading.Lock()
_down: dict[str, tuple[float, str]] = {}  # cell id -> (when to look again, reason)


def known_down(cell_id: str) -> str:
    """Why the cell is held to be down; "" when it is up or this caller is to look again.

    One caller per interval gets "": it is the probe.
    """
    with _lock:
        found = _down.get(cell_id)
        if found is None:
            return ""
        again, reason = found
        now = time.monotonic()
        if now >= again:
            _down[cell_id] = (now + settings.CELL_RETRY_INTERVAL, reason)
            return ""
        return reason


def seen_down(cell_id: str, reason: str) -> None:
    """Remember a failure."""
    with _lock:
        _down[cell_id] = (time.monotonic() + settings.CELL_RETRY_INTERVAL, reason)


def seen_up(cell_id: str) -> None:
    """It answered."""
    if cell_id in _down:
        with _lock:
            _down.pop(cell_id, None)
