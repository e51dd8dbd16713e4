"""Database URLs as Django settings. Imported by the settings, so it knows no models."""

from __future__ import annotations

from typing import Any

import environ

SQLITE = "django.db.backends.sqlite3"
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-64000; "
    "PRAGMA mmap_size=134217728; PRAGMA busy_timeout=10000;"
)
# A server that vanished (its machine died, a firewall drops packets) says nothing: Linux would wait for hours.
VANISHED = {
    "keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3,  # seconds, seconds, times
    "tcp_user_timeout": 10_000,  # milliseconds what was sent may go unacknowledged
}  # fmt: skip


class BadDatabaseUrl(ValueError):
    """The URL names no database Stillwater can use."""


def config(url: str, timeout: float = 2.0) -> dict[str, Any]:
    """Django's settings for a database URL: `sqlite:////path` or `postgresql://…`. Raises BadDatabaseUrl."""
    try:
        settings: dict[str, Any] = dict(environ.Env.db_url_config(url))
    except Exception as exc:  # environ raises whatever urlsplit or int() does
        raise BadDatabaseUrl("not a database URL") from exc
    engine, asked = settings.get("ENGINE", ""), settings.get("OPTIONS", {})
    if engine == SQLITE:
        settings["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",  # a DEFERRED one that upgrades fails at once
            "timeout": 10,
            "init_command": SQLITE_PRAGMAS,
        }
    elif engine == "django.db.backends.postgresql":
        settings["OPTIONS"] = {
            "connect_timeout": max(1, round(timeout)),
            **VANISHED,
            # A process that stops in the middle of a transaction (SIGSTOP, a machine that swaps) loses its locks after
            # a minute: when its peers may take its work over.
            "options": "-c lock_timeout=4000 -c statement_timeout=10000 -c idle_in_transaction_session_timeout=60000",
        }
        settings["CONN_MAX_AGE"] = 60
        settings["CONN_HEALTH_CHECKS"] = True
    else:
        raise BadDatabaseUrl("use sqlite:////path/to/file or postgresql://user:password@host/name")
    settings["OPTIONS"] |= asked  # e.g. ?sslmode=verify-full
    settings.setdefault("CONN_MAX_AGE", 60)
    return settings


def cell_config(url: str) -> dict[str, Any]:
    """As `config`, for a cell: by a backend that creates no file, and notices one that was moved away."""
    settings = config(url)
    if settings["ENGINE"] == SQLITE:
        settings["ENGINE"] = "cells.sqlite"
    return settings
