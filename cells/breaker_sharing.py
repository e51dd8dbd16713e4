"""What the processes of one machine tell each other about cells that are down: one small file each, in one folder.

So only the first request to any of them pays for a failure. Whoever hears of one looks for himself from then on, so a
rumour that is wrong is forgotten within an interval; an old file says nothing.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from django.conf import settings

FRESH = 3.0  # intervals between looks, each of which tells again
_seen: dict[str, int] = {}  # by folder: when it last changed


def tell(cell_id: str, reason: str) -> None:
    """The cell does not answer."""
    if (folder := _folder()) is None:
        return
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".{cell_id}.{os.getpid()}"
        part.write_text(reason)
        part.replace(folder / cell_id)


def take_back(cell_id: str) -> None:
    """The cell answers."""
    if (folder := _folder()) is not None:
        (folder / cell_id).unlink(missing_ok=True)


def news() -> dict[str, str]:
    """Reasons by cell, if anything was told since this process last asked. One system call when nothing was."""
    folder = _folder()
    if folder is None:
        return {}
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return {}
    if _seen.get(str(folder)) == changed:
        return {}
    _seen[str(folder)] = changed
    found = {}
    for file in folder.iterdir():
        with suppress(OSError):
            if not file.name.startswith(".") and time.time() - file.stat().st_mtime < old_after():
                found[file.name] = file.read_text()
    return found


def old_after() -> float:
    """Seconds after which what nobody said again is not so any more."""
    return FRESH * float(settings.CELL_RETRY_INTERVAL) + float(settings.CELL_TIMEOUT)


def _folder() -> Path | None:
    return settings.RUMOURS_DIR
