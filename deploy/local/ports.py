"""Free ports on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Collection

from deploy.local.output import Failed

TRIES = 200


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        # as servers do: lingering connections of an earlier server do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def next_free(first: int, taken: Collection[int] = ()) -> int:
    """Return the first free port from `first` on that is not in `taken`. Raises Failed after TRIES ports."""
    for port in range(first, min(first + TRIES, 65536)):
        if port not in taken and is_free(port):
            return port
    raise Failed(
        f"no free port from {first} to {first + TRIES}",
        advice="Choose others: make up REDIS_PORT=16390",
    )


def any_free() -> int:
    """Return a free port that the system chose."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
