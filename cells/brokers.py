"""Which broker belongs to which cell, and the few things that differ between kinds of brokers.

The only module that knows Redis from RabbitMQ.
"""

from __future__ import annotations

from typing import Any

from kombu import Connection, Exchange, Queue
from kombu.pools import producers, set_limit

from cells.models import Cell

_urls: dict[str, str] = {}
set_limit(16)  # connections per broker URL in this process
REDIS_OPTIONS = {"socket_connect_timeout": 1.0, "socket_timeout": 5.0, "socket_keepalive": True}


def register(cell: Cell) -> None:
    """Remember (or follow a change of) the cell's broker."""
    _urls[cell.alias] = cell.broker_url


def register_url(alias: str, url: str) -> None:
    """As `register`, for a process that knows its cell by its environment alone."""
    _urls[alias] = url


def url(alias: str) -> str:
    """The broker of the cell behind a database alias; "" when it has none (cell0)."""
    return _urls.get(alias, "")


def options(broker_url: str) -> dict[str, Any]:
    """Transport options for a broker: short connect timeouts, confirmed publishing."""
    if broker_url.startswith(("redis", "rediss", "unix", "sentinel")):
        return dict(REDIS_OPTIONS)
    return {"confirm_publish": True}


def queue(name: str) -> Queue:
    """A queue on the default exchange, which needs no binding: a wiped broker loses nothing but messages."""
    return Queue(name, exchange=Exchange(""), routing_key=name)


def connection(broker_url: str) -> Connection:
    """A lazy connection that gives up connecting after a second, and does not try again.

    kombu would wait two seconds and try once more, while a user waits for the answer to a request.
    """
    once = options(broker_url) | {"max_retries": 0}
    return Connection(broker_url, connect_timeout=1.0, transport_options=once)


def producer(broker_url: str) -> Any:
    """A pooled producer, as a context manager."""
    return producers[connection(broker_url)].acquire(block=True, timeout=2)


def depths(broker_url: str, queues: list[str]) -> dict[str, int]:
    """How many messages wait in each queue; one nobody has made yet has none. Raises when the broker is away."""
    found = {}
    with connection(broker_url) as conn:
        conn.ensure_connection(max_retries=1, timeout=2)
        for name in queues:
            channel: Any = conn.channel()
            try:
                found[name] = channel.queue_declare(name, passive=True).message_count
            except conn.channel_errors:
                found[name] = 0
            finally:
                channel.close()
    return found
