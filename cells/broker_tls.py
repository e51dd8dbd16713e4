"""TLS of broker URLs. `deploy` uses it without Django, so it imports no models."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from cells.database_urls import is_local
from cloud import env
from cloud.tls import files


def options(broker_url: str, read: Callable[[str], Any] = env.get) -> dict[str, Any] | bool:
    """Return kombu's `ssl` for this URL: False for a plain one. Each new connection reads the files anew.

    `amqps://` and `rediss://` are verified by STILLWATER_TLS_CA, or else by the authorities that this machine trusts.
    """
    scheme = urlsplit(broker_url).scheme
    if scheme not in ("amqps", "rediss"):
        return False
    asked: dict[str, Any] = {"cert_reqs": ssl.CERT_REQUIRED}
    if configured := files.configured(read):
        asked["ca_certs"] = str(configured.authority)
        if configured.certificate:
            asked |= {"certfile": str(configured.certificate), "keyfile": str(configured.key)}
    if scheme == "rediss":
        return {f"ssl_{name}": value for name, value in asked.items()} | {"ssl_check_hostname": True}
    return asked | {"server_hostname": None}  # kombu puts the URL's in its place


def may_be_plain(broker_url: str) -> bool:
    """Return whether the URL sends messages and a password in plain text to another machine."""
    parts = urlsplit(broker_url)
    return parts.scheme in ("amqp", "pyamqp", "redis") and not is_local(parts.hostname)
