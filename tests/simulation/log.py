"""The engine's log in the simulation: lines of the trace when it is verbose, and events for listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from tests.simulation.kernel import Simulation

listeners: list[Callable[[str, dict[str, Any]], None]] = []


class Logger:
    """The part of structlog's logger that the engine uses."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def bind(self, **_: Any) -> Logger:
        return self

    new = unbind = bind

    def _say(self, event: str, **fields: Any) -> None:
        for listener in listeners:
            listener(event, fields)
        sim = Simulation.current
        if sim is not None and sim.verbose:
            fields.pop("exc_info", None)
            sim.say(f"log {event} {fields}")

    debug = info = warning = error = critical = exception = _say


def put_on() -> None:
    """Configure structlog, before the first log line."""
    structlog.configure(
        processors=[], wrapper_class=Logger, logger_factory=lambda *_: None, cache_logger_on_first_use=True
    )
