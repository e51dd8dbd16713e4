"""Structured logs: events with fields, one JSON object per line. Context is bound once per request or task."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(level: str, fmt: str) -> dict[str, Any]:
    """Return Django's LOGGING dict; structlog and the standard library write the same lines."""
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
    if fmt == "console":  # colours only on a terminal
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr is not None and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback,
        )  # fmt: skip
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
    """Drop the request that Django attaches: its repr has the query string, which may hold a secret."""
    event.pop("request", None)
    return event


def get(name: str) -> Any:
    """Return a logger of events: `log.info("step.finished", seconds=1.2)`."""
    return structlog.get_logger(name)


def bind(**fields: Any) -> None:
    """Add fields to every line of this request or task."""
    structlog.contextvars.bind_contextvars(**fields)


def clear() -> None:
    """Remove the fields of this thread's last request or task."""
    structlog.contextvars.clear_contextvars()


logging.captureWarnings(capture=True)
