"""A client keeps its connection: a request between two polls was "Connection reset by peer" now and then."""

from __future__ import annotations

import time
from http.client import HTTPConnection

import pytest

SILENCE = 4.0  # seconds; clients that wait for a server poll every two


@pytest.mark.live
def test_a_client_that_was_silent_for_a_while_goes_on_with_its_connection(fake_cloud):
    connection = HTTPConnection("127.0.0.1", fake_cloud.port, timeout=10)
    assert ask(connection) == 200
    first = connection.sock
    time.sleep(SILENCE)
    assert ask(connection) == 200
    assert connection.sock is first


def ask(connection: HTTPConnection) -> int:
    """One request; its status."""
    connection.request("GET", "/healthz")
    with connection.getresponse() as answer:
        answer.read()
        return answer.status
