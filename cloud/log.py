"""Structured logs: events with fields, one JSON object a line. Context is bound once, at the edge."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """Imports in here do not find a module; whoever has it already keeps it."""
    there = {key: sys.modules.pop(key) for key in list(sys.modules) if key.partition(".")[0] == name}
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
        sys.modules.update(there)


# For tracebacks in colours, which we do not print, structlog loads all of rich: a tenth of the start of every process.
with _absent("rich"):
    import structlog


def configure(level: str, fmt: str) -> dict[str, Any]:
    """Django's LOGGING dict; structlog and the standard library end in the same lines."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_request,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    last: Any = structlog.processors.JSONRenderer()
    if fmt == "console":  # colours are for a terminal: in a file or a pipe they are noise
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr is not None and sys.stderr.isatty())
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "events": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    last,
                ],
                "foreign_pre_chain": shared,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "events"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {"urllib3": {"level": "WARNING"}, "django.db.backends": {"level": "WARNING"}},
    }


def _without_request(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Django attaches the request, whose repr has the query string, which may hold a secret."""
    event.pop("request", None)
    return event


def get(name: str) -> Any:
    """A logger of events: `log.info("step.finished", seconds=1.2)`."""
    return structlog.get_logger(name)


def bind(**fields: Any) -> None:
    """Add fields to every line of this request or task."""
    structlog.contextvars.bind_contextvars(**fields)


def clear() -> None:
    """Forget the fields of the last request or task of this thread."""
    structlog.contextvars.clear_contextvars()


logging.captureWarnings(capture=True)
