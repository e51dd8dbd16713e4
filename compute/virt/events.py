"""How a driver tells the world that something happened, without waiting for the listeners."""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

log = logging.getLogger(__name__)


class EventThread:
    """One thread doing small jobs in order: a slow or failing listener holds up no hypervisor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Have `job` run soon in the announcer's thread; what it raises is logged."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Stop after what is already submitted."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a listener's bug must not end the events of every guest
                log.exception("virt.listener_failed")


class GuestNotifier:
    """Lets callers sleep until a guest's bell rings; ringing for nobody costs nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = defaultdict(set)
        self._listeners: list[Callable[[str], None]] = []

    def tell(self, listener: Callable[[str], None]) -> None:
        """Have it called at every ring, with the guest, or "" for all of them. It must be quick."""
        self._listeners.append(listener)

    @contextmanager
    def listening(self, uuid: str) -> Iterator[threading.Event]:
        """From here on a ring for this guest is not missed."""
        event = threading.Event()
        with self._lock:
            self._waiting[uuid].add(event)
        try:
            yield event
        finally:
            with self._lock:
                self._waiting[uuid].discard(event)
                if not self._waiting[uuid]:
                    del self._waiting[uuid]

    def ring(self, uuid: str) -> None:
        """Wake whoever waits for this guest."""
        with self._lock:
            for event in self._waiting.get(uuid, ()):
                event.set()
        for tell in self._listeners:
            tell(uuid)

    def ring_all(self) -> None:
        """Wake everybody: anything may have happened."""
        with self._lock:
            for notifier in self._waiting.values():
                for event in notifier:
                    event.set()
        for tell in self._listeners:
            tell("")


def wait_for(
    event: threading.Event,
    is_so: Callable[[], bool],
    seconds: float,
    look_again: float | None = None,
) -> bool:
    """True as soon as `is_so` after a ring; looked at once before and once at the end as well.

    `look_again`: where a ring may be missed, look so often without one.
    """
    deadline = monotonic() + seconds
    while not is_so():
        left = deadline - monotonic()
        if left <= 0:
            return False
        event.wait(left if look_again is None else min(left, look_again))
        event.clear()
    return True
