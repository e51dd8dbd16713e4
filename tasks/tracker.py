"""What is in progress in this process: one tracker, filled by Celery's signals and by threads of our own.

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

    REQUEST = "request"  # an operation nobody has begun
    OPERATION = "operation"  # what an operation already begun still needs
    CALL = "call"  # a question an API request waits for: console output
    WISH = "wish"  # an operator's word to this process
    EVENT = "event"  # the hypervisor noticed something
    PERIODIC = "periodic"  # by the clock


# Declared per kind: what may begin while the process drains. What has begun always ends.
ACCEPTED_WHILE_DRAINING = frozenset({Kind.OPERATION, Kind.CALL, Kind.WISH, Kind.EVENT})


@dataclass(slots=True)
class Work:
    """One thing in progress. What it is about is filled in once its step is claimed."""

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
        """How long it has been going on."""
        return time.monotonic() - self.since

    def facts(self) -> dict[str, Any]:
        """For a line of log."""
        shown: dict[str, Any] = {
            "work": self.name, "kind": self.kind.value, "action": self.action, "server": self.server_id,
            "request_id": self.request_id, "seconds": round(self.seconds, 1),
        }  # fmt: skip
        return {key: value for key, value in shown.items() if value != ""}


class Tracker:
    """Everything in progress, under one lock."""

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
        """Count a piece of work, unless it may not begin now: then it says why it is refused."""
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
        """It has ended, one way or another."""
        self._here.work = None
        with self._lock:
            work = self._running.pop(key, None)
        if work is not None:
            for tell in self._listeners:
                tell(work)

    @contextmanager
    def doing(self, kind: Kind, name: str) -> Iterator[Work]:
        """Count work of a thread of our own inside the block; look at `refused` first."""
        work = self.begin(Work(kind, name))
        try:
            yield work
        finally:
            self.end(work.key)

    def here(self) -> Work | None:
        """The work of this thread."""
        return getattr(self._here, "work", None)

    def refused(self) -> str:
        """Why this thread's work may not begin; "" when it may."""
        work = self.here()
        return work.refused if work is not None else ""

    def bound(self, slots: int, long_slots: int = 0) -> None:
        """No more requests, and no more long operations, than that at once: the other threads are kept for the rest.

        A bound of our own: a broker's prefetch forgets what is in progress when the connection is made anew.
        """
        self._slots, self._long_slots = slots, long_slots

    def take_skipped(self) -> int:
        """How many requests there is room for, if some were refused for want of it since the last time; else 0."""
        with self._lock:
            skipped, self._skipped = self._skipped and not self._refusing, False
            return self._free() if skipped else 0

    def skip(self) -> None:
        """There are requests that wait for room."""
        self._skipped = True

    def take_long_slot(self) -> bool:
        """Whether this thread's work may be a long operation now; it then has a slot until it ends."""
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
        """There are long operations that wait for room."""
        self._long_skipped = True

    def _long_free(self) -> int:
        return self._long_slots - sum(work.is_long for work in self._running.values())

    def _free(self) -> int:
        return self._slots - sum(work.kind is Kind.REQUEST for work in self._running.values())

    def refuse(self, *, refusing: bool) -> None:
        """From now on only what is accepted while draining may begin; or everything again."""
        with self._lock:
            self._refusing = refusing

    @property
    def refuses(self) -> bool:
        """Whether requests may not begin now."""
        return self._refusing

    def running(self) -> list[Work]:
        """A copy, the oldest first."""
        with self._lock:
            return sorted(self._running.values(), key=lambda work: work.since)

    def steps(self) -> list[int]:
        """Ids of the journal's steps among it."""
        return [work.step_id for work in self.running() if work.step_id is not None]

    def tell(self, listener: Callable[[Work], None]) -> None:
        """Have it called with each piece of work that ended, in the thread that did it."""
        self._listeners.append(listener)


tracker = Tracker()


def attach(kind_of: Callable[[Any], Kind]) -> None:
    """Count every Celery task of this process, from before its first line to after its last."""

    def began(task_id: str, task: Any, kwargs: dict[str, Any], **_: Any) -> None:
        tracker.begin(Work(kind_of(task), task.name, task_id, step_id=kwargs.get("step_id")))

    signals.task_prerun.connect(began, weak=False)
    signals.task_postrun.connect(lambda task_id, **_: tracker.end(task_id), weak=False)
