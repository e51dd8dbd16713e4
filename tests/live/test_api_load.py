"""SIGTERM to the API under load: with a socket that stays nobody notices, without one everybody is told."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import requests

from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Api, ask_on, listener

SERVERS = "/compute/v2.1/servers"
CLIENTS = 8  # every second one with a new connection for each request
PAUSE = 0.05  # seconds between two requests of a client, which is to hit every moment and not to fill the machine

pytestmark = pytest.mark.live


class Load:
    """Clients that list servers all the time, and try nothing twice."""

    def __init__(self, port: int, token: str) -> None:
        self._url, self._token = f"http://127.0.0.1:{port}{SERVERS}", token
        self.results: Counter[str] = Counter()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _client(self, number: int) -> None:
        headers = {"X-Auth-Token": self._token} | ({"Connection": "close"} if number % 2 else {})
        with requests.Session() as session:
            session.trust_env = False
            session.headers.update(headers)
            while not self._over.wait(PAUSE):
                result = self._one(session)
                with self._lock:
                    self.results[result] += 1

    def _one(self, session: requests.Session) -> str:
        try:
            answer = session.get(self._url, timeout=60)
        except requests.ConnectionError as exc:
            return "refused" if "Connection refused" in str(exc) else repr(exc)
        if answer.status_code == 503:
            told = answer.headers.get("Retry-After"), answer.headers["Connection"]
            return "503" if told == ("5", "close") else f"503 {told}"
        return str(answer.status_code)

    def goes_on(self) -> None:
        """Wait until another hundred requests were answered well."""
        before = self.results["200"]
        eventually("100 answers", lambda: self.results["200"] >= before + 100, seconds=60)


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """What a socket unit of systemd is: it listens, whoever runs."""
    with listener() as it:
        yield it


@pytest.fixture
def start(fake_cloud: Cloud, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Starts an API of the test's own; it may not be ready yet."""
    started: list[Api] = []

    def one(**how: object) -> Api:
        started.append(Api(fake_cloud, tmp_path / f"api{len(started)}.log", **how))  # type: ignore[arg-type]
        return started[-1]

    yield one
    for api in started:
        api.end()


@pytest.fixture
def token(fake_cloud: Cloud) -> str:
    """A member's."""
    return str(fake_cloud.sdk().auth_token)


@pytest.mark.parametrize("successor", ["is there already", "starts after the exit"])
def test_with_a_socket_that_stays_no_request_fails_over_restarts(start, held, token, successor):
    api = start(held=held).wait_until_ready()
    with Load(api.port, token) as load:
        for _ in range(3):
            load.goes_on()
            old = api
            if successor == "is there already":
                api = start(held=held).wait_until_ready()
                old.send(signal.SIGTERM)
                assert old.wait() == 0
            else:
                old.send(signal.SIGTERM)
                assert old.wait() == 0
                api = start(held=held)
            load.goes_on()
    assert set(load.results) == {"200"}


def test_a_worker_that_ends_alone_is_not_noticed(start, token):
    api = start().wait_until_ready()
    with Load(api.port, token) as load:
        for _ in range(4):
            load.goes_on()
            first = api.workers()[0]
            os.kill(first, signal.SIGTERM)
            eventually("another worker", lambda first=first: first not in api.workers(), seconds=30)
            load.goes_on()
    assert set(load.results) == {"200"}


def test_without_such_a_socket_new_requests_are_denied_or_refused(start, token):
    api = start().wait_until_ready()
    with Load(api.port, token) as load:
        load.goes_on()
        api.send(signal.SIGTERM)
        assert api.wait() == 0
        eventually("refusals", lambda: load.results["refused"] >= CLIENTS, seconds=10)
    assert set(load.results) <= {"200", "503", "refused"}
    assert load.results["503"]


def test_a_connection_that_was_kept_is_served_once_more_by_who_leaves(start, held, token):
    api = start(held=held, STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="30").wait_until_ready()
    kept = [HTTPConnection("127.0.0.1", api.port, timeout=30) for _ in range(6)]
    for connection in kept:
        assert ask_on(connection, "/healthz").headers["Connection"] == "keep-alive"
    api.send(signal.SIGTERM)
    eventually("draining", lambda: len(api.events("api.draining")) == 2, seconds=10, pause=0.02)
    for connection in kept:  # all at once: idle connections are closed a second later
        connection.request("GET", SERVERS, headers={"X-Auth-Token": token})
    for connection in kept:
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert api.wait() == 0
