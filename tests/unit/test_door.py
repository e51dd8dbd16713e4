"""A port that closes while clients come: each is answered or refused, and none is cut off."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cloud.serving import socket_close

CLIENTS = 8
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])


class Port:
    """It listens, and answers one word to each client."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self._listener = socket.create_server(("", 0), family=family, backlog=64)
        self.address = ("::1" if family == socket.AF_INET6 else "127.0.0.1", self._listener.getsockname()[1])
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.results: Counter[str] = Counter()

    def accept(self, listener: socket.socket) -> None:
        """One client."""
        self._pool.submit(self._answer, listener.accept()[0])

    def _answer(self, client: socket.socket) -> None:
        with client:
            client.recv(100)
            client.sendall(b"well")

    def call(self) -> str:
        """What one client sees."""
        try:
            with socket.create_connection(self.address, timeout=10) as client:
                client.sendall(b"hello")
                return client.recv(100).decode()
        except ConnectionRefusedError:
            return "refused"
        except OSError as error:
            return repr(error)

    def call_until_refused(self) -> None:
        """Again and again."""
        result = ""
        while result != "refused":
            result = self.call()
            self.results[result] += 1

    def serve(self, clients: int) -> None:
        """So many."""
        for _ in range(clients):
            self.accept(self._listener)

    def close(self, just_before: Callable[[], None]) -> None:
        """Well, or so it should be."""
        socket_close.turn_away([self._listener])
        socket_close.empty([self._listener], self.accept, socket_close.HANDSHAKE)
        just_before()
        self._listener.close()
        self._pool.shutdown()


@pytest.fixture
def port(family: socket.AddressFamily) -> Port:
    """One that is open."""
    return Port(family)


@FAMILIES
def test_who_comes_while_the_port_closes_is_answered_or_refused(port):
    clients = [threading.Thread(target=port.call_until_refused) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    port.serve(20)
    port.close(lambda: None)
    for client in clients:
        client.join(30)
    assert set(port.results) == {"well", "refused"}


@FAMILIES
def test_who_comes_after_the_last_look_is_not_let_in_to_be_cut_off(port):
    with ThreadPoolExecutor(1) as somebody:
        late: list[Future[str]] = []

        def comes() -> None:
            late.append(somebody.submit(port.call))
            time.sleep(0.2)

        port.close(comes)
        assert late[0].result(30) == "refused"


@FAMILIES
def test_who_stands_in_the_queue_already_is_answered(port):
    with ThreadPoolExecutor(CLIENTS) as some:
        calls = [some.submit(port.call) for _ in range(CLIENTS)]
        time.sleep(0.2)
        port.close(lambda: None)
        assert {call.result(30) for call in calls} == {"well"}
