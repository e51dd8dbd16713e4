"""Database URLs as Django settings. The settings import this module, so it imports no models."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import environ

from cloud.tls import files

SQLITE = "django.db.backends.sqlite3"
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-64000; "
    "PRAGMA mmap_size=134217728; PRAGMA busy_timeout=10000;"
)
# Without these Linux waits for hours for a server that vanished (its machine died, a firewall drops packets).
VANISHED = {
    "keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3,  # seconds, seconds, times
    "tcp_user_timeout": 10_000,  # milliseconds that sent data may stay unacknowledged
}  # fmt: skip
PLAIN_MODES = ("disable", "allow", "prefer")  # of libpq; the last two try plain text, too


class BadDatabaseUrl(ValueError):
    """The URL names no database that Stillwater can use."""


def config(url: str, timeout: float = 2.0) -> dict[str, Any]:
    """Return Django's settings for `sqlite:////path` or `postgresql://…`. Raises BadDatabaseUrl.

    `timeout`: seconds to connect, of PostgreSQL only.
    """
    try:
        settings: dict[str, Any] = dict(environ.Env.db_url_config(url))
    except Exception as exc:  # environ lets the errors of urlsplit and int() through
        raise BadDatabaseUrl("not a database URL") from exc
    engine, asked = settings.get("ENGINE", ""), settings.get("OPTIONS", {})
    if engine == SQLITE:
        settings["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",  # a DEFERRED transaction that upgrades to writing fails at once
            "timeout": 10,
            "init_command": SQLITE_PRAGMAS,
        }
    elif engine == "django.db.backends.postgresql":
        settings["OPTIONS"] = {
            "connect_timeout": max(1, round(timeout)),
            **VANISHED,
            **_tls(),
            # A process that stops inside a transaction (SIGSTOP, a machine that swaps) loses its locks after a minute,
            # when its peers may take its work over.
            "options": "-c lock_timeout=4000 -c statement_timeout=10000 -c idle_in_transaction_session_timeout=60000",
        }
        settings["CONN_MAX_AGE"] = 60
        settings["CONN_HEALTH_CHECKS"] = True
    else:
        raise BadDatabaseUrl("use sqlite:////path/to/file or postgresql://user:password@host/name")
    settings["OPTIONS"] |= asked  # e.g. ?sslmode=disable
    settings.setdefault("CONN_MAX_AGE", 60)
    return settings


def may_be_plain(url: str) -> bool:
    """Return whether the URL sends data in plain text to another machine, as far as the URL and the settings say."""
    try:
        settings = config(url)
    except BadDatabaseUrl:
        return False
    mode = settings["OPTIONS"].get("sslmode", "prefer")
    return settings["ENGINE"] != SQLITE and mode in PLAIN_MODES and not is_local(settings["HOST"])


def is_local(host: str | None) -> bool:
    """Return whether the host is this machine: no name, a folder of sockets, or a loopback address."""
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _tls() -> dict[str, str]:
    """Return libpq's parameters by the TLS settings. libpq reads the files anew for each connection."""
    configured = files.configured()
    if configured is None:
        return {}
    options = {"sslmode": "verify-full", "sslrootcert": str(configured.authority)}
    if configured.certificate:
        options |= {"sslcert": str(configured.certificate), "sslkey": str(configured.key)}
    return options


@lru_cache(maxsize=4096)
def cell_config(url: str) -> dict[str, Any]:
    """As `config`, for a cell: with the backend that creates no file and notices a moved one. Do not change it."""
    settings = config(url)
    if settings["ENGINE"] == SQLITE:
        settings["ENGINE"] = "cells.sqlite"
    return settings
