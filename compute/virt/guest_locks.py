"""Locks that let only one thread of one process of a host shut down a given guest at a time."""

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
PATIENCE = 10.0  # seconds: a holder that takes longer hangs, and the guest's deadline matters more than the lock
PAUSE = 0.02


class GuestLocks:
    """One lock per guest: a file that exists while the lock is held or, without a `directory`, a lock in memory.

    The kernel releases the file locks of a killed process.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._in_memory: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def alone(self, uuid: str, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the guest's lock, against all other threads and processes of this host.

        Continues without the lock if it cannot get the file lock within `patience` seconds; the lock in memory has no
        limit.
        """
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
                    file.unlink()  # before the release: a process that waits for this file sees that it was replaced
                os.close(descriptor)


def _take(file: Path, patience: float) -> int | None:
    deadline = time.monotonic() + patience
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            log.warning("guest_lock.open_failed file=%s error=%r", file, error)
            return None
        if _is_ours(descriptor, file):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            log.warning("guest_lock.timed_out file=%s", file)
            return None
        time.sleep(PAUSE)


def _is_ours(descriptor: int, file: Path) -> bool:
    with suppress(OSError):  # another process holds the lock, or held it and removed the file
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == file.stat().st_ino
    return False
