"""The tracker of work in progress in this process, filled by Celery's signals and by threads of our own.

While the process drains, the tracker decides under one lock what may still begin. So there is no moment at
which it says "nothing in progress" and something begins after all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import uuid4

from celery import signals


class Kind(StrEnum):
    """Kinds of work, as far as draining is concerned."""

    REQUEST = "request"  # new work
    OPERATION = "operation"  # a step of an operation that has begun
    CALL = "call"  # a call that an API request waits for: console output
    DRAIN_REQUEST = "drain request"  # the drain request of this process has changed
    EVENT = "event"  # an event of the hypervisor
    PERIODIC = "periodic"  # a periodic task


# Kinds of work that may begin while the process drains. Work that has begun always ends.
ACCEPTED_WHILE_DRAINING = frozenset({Kind.OPERATION, Kind.CALL, Kind.DRAIN_REQUEST, Kind.EVENT})


@dataclass(slots=True)
class Work:
    """One piece of work in progress. What it is about is filled in once its step is claimed."""

    kind: Kind
    name: str
    key: str = field(default_factory=lambda: str(uuid4()))
    refused: str = ""  # why it may not begin: "draining" or "full"
    is_long: bool = False  # it has one of the slots for long operations
    step_id: int | None = None
    action: str = ""
    server_id: str = ""
    request_id: str = ""
    since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return time.monotonic() - self.since

    def facts(self) -> dict[str, Any]:
        """Return the fields of a log event."""
        shown: dict[str, Any] = {
            "work": self.name, "kind": self.kind.value, "action": self.action, "server": self.server_id,
            "request_id": self.request_id, "seconds": round(self.seconds, 1),
        }  # fmt: skip
        return {key: value for key, value in shown.items() if value != ""}


class Tracker:
    """All work in progress in this process, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Work] = {}
        self._refusing = False
        self._slots = 0  # requests that may be in progress at once; 0: as many as there are threads
        self._skipped = False  # a request was refused because the slots were full
        self._long_slots = 0  # long operations that may be in progress at once; 0: as many as there are threads
        self._long_skipped = False  # one was refused because those were full
        self._here = threading.local()
        self._listeners: list[Callable[[Work], None]] = []

    def begin(self, work: Work) -> Work:
        """Add a piece of work; if it may not begin now, set its `refused` instead."""
        with self._lock:
            if self._refusing and work.kind not in ACCEPTED_WHILE_DRAINING:
                work.refused = "draining"
            elif work.kind is Kind.REQUEST and self._slots and self._free() <= 0:
                work.refused, self._skipped = "full", True
            else:
                self._running[work.key] = work
        self._here.work = work
        return work

    def end(self, key: str) -> None:
        """Remove a piece of work that has ended, and tell the listeners."""
        self._here.work = None
        with self._lock:
            work = self._running.pop(key, None)
        if work is not None:
            for tell in self._listeners:
                tell(work)

    @contextmanager
    def doing(self, kind: Kind, name: str) -> Iterator[Work]:
        """Track work of one of our own threads inside the block. The caller checks `refused` first."""
        work = self.begin(Work(kind, name))
        try:
            yield work
        finally:
            self.end(work.key)

    def here(self) -> Work | None:
        """Return the work of this thread."""
        return getattr(self._here, "work", None)

    def refused(self) -> str:
        """Return why this thread's work may not begin; "" when it may."""
        work = self.here()
        return work.refused if work is not None else ""

    def bound(self, slots: int, long_slots: int = 0) -> None:
        """Bound the requests and the long operations in progress: the other threads are kept for the rest.

        A broker's prefetch is no such bound: it forgets what is in progress when the connection is made anew.
        """
        self._slots, self._long_slots = slots, long_slots

    def take_skipped(self) -> int:
        """Return how many requests have room, if some were refused for full slots since the last call; else 0."""
        with self._lock:
            skipped, self._skipped = self._skipped and not self._refusing, False
            return self._free() if skipped else 0

    def skip(self) -> None:
        """Note that requests wait for a slot."""
        self._skipped = True

    def take_long_slot(self) -> bool:
        """Take a slot for long operations for this thread's work, until it ends; False when none is free."""
        with self._lock:
            if self._long_slots and self._long_free() <= 0:
                self._long_skipped = True
                return False
            work = self.here()
            if work is not None:
                work.is_long = True
            return True

    def take_long_skipped(self) -> int:
        """As `take_skipped`, of long operations, which begin while the process drains, too."""
        with self._lock:
            skipped, self._long_skipped = self._long_skipped, False
            return self._long_free() if skipped else 0

    def skip_long(self) -> None:
        """Note that long operations wait for a slot."""
        self._long_skipped = True

    def _long_free(self) -> int:
        return self._long_slots - sum(work.is_long for work in self._running.values())

    def _free(self) -> int:
        return self._slots - sum(work.kind is Kind.REQUEST for work in self._running.values())

    def refuse(self, *, refusing: bool) -> None:
        """Refuse all work except what is accepted while draining; or accept everything again."""
        with self._lock:
            self._refusing = refusing

    @property
    def refuses(self) -> bool:
        """Whether requests are refused now."""
        return self._refusing

    def running(self) -> list[Work]:
        """Return the work in progress, the oldest first."""
        with self._lock:
            return sorted(self._running.values(), key=lambda work: work.since)

    def steps(self) -> list[int]:
        """Return the ids of the steps in progress."""
        return [work.step_id for work in self.running() if work.step_id is not None]

    def tell(self, listener: Callable[[Work], None]) -> None:
        """Have `listener` called with each piece of work that ended, in the thread that did it."""
        self._listeners.append(listener)


tracker = Tracker()


def attach(kind_of: Callable[[Any], Kind]) -> None:
    """Track every Celery task of this process, from before its first line to after its last."""

    def began(task_id: str, task: Any, kwargs: dict[str, Any], **_: Any) -> None:
        tracker.begin(Work(kind_of(task), task.name, task_id, step_id=kwargs.get("step_id")))

    signals.task_prerun.connect(began, weak=False)
    signals.task_postrun.connect(lambda task_id, **_: tracker.end(task_id), weak=False)
