"""One guest is shut down by one thread of one process of its host at a time."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds: whoever holds a lock longer hangs, and a guest's deadline counts more than order
PAUSE = 0.02


class GuestLocks:
    """One per guest: a file that is there while it is held, or in memory without a `directory`.

    The kernel lets go of what a killed process held.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._in_memory: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def alone(self, uuid: str, patience: float = PATIENCE) -> Iterator[None]:
        """Nobody else of this host does this with this guest meanwhile. After `patience` seconds it goes on anyway."""
        if self._directory is None:
            with self._in_memory[uuid]:
                yield
            return
        file = self._directory / quote(uuid, safe="")
        descriptor = _take(file, patience)
        try:
            yield
        finally:
            if descriptor is not None:
                with suppress(OSError):
                    file.unlink()  # before it is let go: who waits for this file finds that it is another one by then
                os.close(descriptor)


def _take(file: Path, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            log.warning("grace.no_lock file=%s error=%r", file, error)
            return None
        if _is_ours(descriptor, file):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            log.warning("grace.lock_held_too_long file=%s", file)
            return None
        time.sleep(PAUSE)


def _is_ours(descriptor: int, file: Path) -> bool:
    with suppress(OSError):  # somebody has it, or had it and took the file away
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == file.stat().st_ino
    return False
