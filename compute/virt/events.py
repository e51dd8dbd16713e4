"""How a driver passes changes of guests to its listeners without waiting for them."""

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
    """A thread that runs small jobs in order, so that a slow or failing listener does not block a hypervisor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Queue `job` for the thread; an exception of the job is logged. Starts the thread at first use."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Stop the thread after the jobs already submitted. Does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug in one listener must not stop the events of all guests
                log.exception("virt.listener_failed")


class GuestNotifier:
    """Wakes threads that wait for a change of a guest, and calls listeners for every change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = defaultdict(set)
        self._listeners: list[Callable[[str], None]] = []

    def tell(self, listener: Callable[[str], None]) -> None:
        """Register `listener`, called at every change with the guest's UUID, or "" for all guests. It must not block.
        """
        self._listeners.append(listener)

    @contextmanager
    def listening(self, uuid: str) -> Iterator[threading.Event]:
        """Yield an event that every change of this guest sets from now on."""
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

    def notify(self, uuid: str) -> None:
        """Wake the threads that wait for this guest, and call the listeners."""
        with self._lock:
            for event in self._waiting.get(uuid, ()):
                event.set()
        for tell in self._listeners:
            tell(uuid)

    def notify_all(self) -> None:
        """Wake all waiting threads: any guest may have changed."""
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
    """Wait until `is_so()` is true and return True; return False after `seconds`.

    The condition is tested at the start, after each event and at the end; where events may be missed, also every
    `look_again` seconds.
    """
    deadline = monotonic() + seconds
    while not is_so():
        left = deadline - monotonic()
        if left <= 0:
            return False
        event.wait(left if look_again is None else min(left, look_again))
        event.clear()
    return True
