"""Queries to many brokers at once. A broker that hangs holds one thread per kind of query, however often it is asked.

Not part of `scatter`: a cell whose broker is down is not a down cell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, TypeVar

from cloud.tls import failures

LATE = "did not answer in time"
T = TypeVar("T")
_executor = ThreadPoolExecutor(64, thread_name_prefix="broker")
_asked: dict[tuple[str, str], Future[Any]] = {}  # by broker URL and kind of query
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class BrokerUnavailable:
    """A broker that did not answer, and why."""

    reason: str


def ask(broker_url: str, kind: str, question: Callable[[], T]) -> Future[T]:
    """Return the future answer. Until a query of this kind is answered, callers share it and no other is sent."""
    key = (broker_url, kind)
    with _lock:
        last = _asked.get(key)
        if last is None or last.done():
            last = _asked[key] = _executor.submit(question)
        return last


def collect(future: Future[T], end: float) -> T | BrokerUnavailable:
    """Return the answer that is there by `end` (monotonic seconds), else BrokerUnavailable. Raises nothing."""
    try:
        return future.result(timeout=max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return BrokerUnavailable(LATE)
    except Exception as error:  # each transport raises its own types; all mean: down
        return BrokerUnavailable(failures.describe(error) or type(error).__name__)
