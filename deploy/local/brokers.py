"""Whether a broker answers: for brokers that `up` does not start, and for the RabbitMQ of the tests."""

from __future__ import annotations

from typing import Any

from kombu import Connection

SECONDS = 3


def answers(url: str, ssl: dict[str, Any] | bool = False) -> bool:
    """Return whether a broker accepts a connection with this URL's user name and password. `ssl`: kombu's."""
    with Connection(url, connect_timeout=SECONDS, ssl=ssl) as connection:
        refusals: tuple[type[BaseException], ...] = (OSError, *connection.connection_errors)
        try:
            connection.connect()
        except refusals:
            return False
    return True
