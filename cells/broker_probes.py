"""Questions to brokers, many at once: one that hangs holds one thread for each kind of question, however often asked.

Not through `scatter`: a cell lives on without its broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, TypeVar

LATE = "did not answer in time"
T = TypeVar("T")
_executor = ThreadPoolExecutor(64, thread_name_prefix="broker")
_asked: dict[tuple[str, str], Future[Any]] = {}  # by URL and kind of question
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class BrokerUnavailable:
    """A broker that did not answer, and why."""

    reason: str


def ask(broker_url: str, kind: str, question: Callable[[], T]) -> Future[T]:
    """The answer to come. While the broker owes one to a question of this kind it is not asked again."""
    key = (broker_url, kind)
    with _lock:
        last = _asked.get(key)
        if last is None or last.done():
            last = _asked[key] = _executor.submit(question)
        return last


def collect(future: Future[T], end: float) -> T | BrokerUnavailable:
    """What it said by `end` (monotonic). Nothing is raised."""
    try:
        return future.result(timeout=max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return BrokerUnavailable(LATE)
    except Exception as error:  # every transport raises its own kinds, and all mean: not reached
        return BrokerUnavailable(type(error).__name__)
