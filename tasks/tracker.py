"""What is in progress in this process, under a lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from compute.models import Step


@dataclass(frozen=True, slots=True)
class InProgress:
    """One step this process runs now."""

    step_id: int
    name: str
    action: str
    server_id: str
    request_id: str
    since: datetime


_lock = threading.Lock()
_running: dict[int, InProgress] = {}


@contextmanager
def tracking(step: Step) -> Iterator[None]:
    """Count the step as in progress inside the block."""
    entry = InProgress(
        step.pk, step.name, step.action.action, step.server_id, step.action.request_id, timezone.now()
    )
    with _lock:
        _running[step.pk] = entry
    try:
        yield
    finally:
        with _lock:
            _running.pop(step.pk, None)


def running() -> dict[int, InProgress]:
    """A copy, by step id."""
    with _lock:
        return dict(_running)
