"""Brokers that are not ours to start: whether they are there."""

from __future__ import annotations

from kombu import Connection

SECONDS = 3


def answers(url: str) -> bool:
    """Whether a broker takes a connection with this URL's name and password."""
    with Connection(url, connect_timeout=SECONDS) as connection:
        refusals: tuple[type[BaseException], ...] = (OSError, *connection.connection_errors)
        try:
            connection.connect()
        except refusals:
            return False
    return True
