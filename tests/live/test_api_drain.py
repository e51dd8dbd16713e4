"""SIGTERM to the API: who is being served is served, who comes then is told when to come back."""

from __future__ import annotations

import fcntl
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Api, ask, ask_on
from tests.machine import fair

SERVERS = "/compute/v2.1/servers"
# The bytes of a -shm file that readers of a WAL database lock (SQLite's file format, "WAL-Index").
SHM_READERS, FIRST_READER = 5, 123
AT_ONCE = 2.0  # seconds

pytestmark = pytest.mark.live


@pytest.fixture
def token(fake_cloud: Cloud) -> str:
    """A member's."""
    return str(fake_cloud.sdk().auth_token)


@pytest.fixture
def serve(fake_cloud: Cloud, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Starts an API of the test's own, with these settings."""
    started: list[Api] = []

    def start(**settings: str) -> Api:
        started.append(Api(fake_cloud, tmp_path / f"api{len(started)}.log", **settings))
        return started[-1].wait_until_ready()

    yield start
    for one in started:
        one.end()


@pytest.fixture
def later() -> Iterator[Callable[..., Future[Any]]]:
    """Runs a call in a thread of its own."""
    with ThreadPoolExecutor(50) as threads:
        yield threads.submit


@contextmanager
def no_reads(cloud: Cloud) -> Iterator[None]:
    """The global database is locked: whoever reads waits, up to ten seconds."""
    with (cloud.directory / "global.sqlite3-shm").open("r+b") as shm:
        fcntl.lockf(shm, fcntl.LOCK_EX, SHM_READERS, FIRST_READER)
        yield


class Upload:
    """An image whose bytes come as slowly as the test feeds them."""

    def __init__(self, api: Api, token: str, size: int = 1000) -> None:
        facts = {"name": "slow", "disk_format": "raw", "container_format": "bare"}
        image = f"/image/v2/images/{ask(api.port, '/image/v2/images', 'POST', facts, X_Auth_Token=token).json['id']}"
        self.path, self.left = f"{image}/file", size
        self._connection = HTTPConnection("127.0.0.1", api.port, timeout=60)
        self._connection.putrequest("PUT", self.path)
        headers = {"X-Auth-Token": token, "Content-Type": "application/octet-stream", "Content-Length": str(size)}
        for name, value in headers.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        self.feed(1)
        show = partial(ask, api.port, image, X_Auth_Token=token)
        eventually("the upload has begun", lambda: show().json["status"] == "saving", seconds=30)

    def feed(self, size: int) -> None:
        """Some more of it."""
        self._connection.send(b"x" * size)
        self.left -= size

    def finish(self) -> int:
        """The rest, and the status of the answer."""
        self.feed(self.left)
        return self._connection.getresponse().status


def in_progress(api: Api, count: int = 1) -> None:
    """Wait until the drain has begun, with so many requests; one that was just answered may still be counted."""
    draining = "api.draining"
    eventually(draining, lambda: len(api.events(draining)) == 2, seconds=10, pause=0.02)
    assert sum(event["in_progress"] for event in api.events(draining)) in (count, count + 1)


def reported(cloud) -> set[int]:
    """The processes of APIs that have reported their version, and serve."""
    return {pid for (pid,) in cloud.ask("global", "SELECT pid FROM compute_apiprocess")}


def test_the_list_in_progress_is_answered_and_the_next_is_denied(serve, fake_cloud, token, later):
    api = serve()
    with no_reads(fake_cloud):
        request1 = later(ask, api.port, SERVERS, X_Auth_Token=token)
        api.wait_until_reached()
        api.send(signal.SIGTERM)
        in_progress(api)
        assert ask(api.port, "/readyz").json["status"] == "draining"
        asked = time.monotonic()
        request2 = ask(api.port, SERVERS, X_Auth_Token=token)
        assert time.monotonic() - asked < fair(AT_ONCE)
        assert ask(api.port, "/healthz").status == 200
        login = ask(api.port, "/identity/v3/auth/tokens", "POST", {})
        assert not request1.done()
        assert api.runs()
    assert request1.result().status == 200
    answered = time.monotonic()
    assert api.wait() == 0
    assert time.monotonic() - answered < fair(AT_ONCE)

    fault = {"code": 503, "message": "The API is shutting down. Try again in a few seconds.", "retryAfter": "5"}
    assert (request2.status, request2.json) == (503, {"serviceUnavailable": fault})
    assert (request2.headers["Retry-After"], request2.headers["Connection"]) == ("5", "close")
    assert request2.headers["x-openstack-request-id"].startswith("req-")
    assert (login.status, login.json["error"]["code"], login.headers["Retry-After"]) == (503, 503, "5")
    [waited] = api.events("api.request_waits")
    request1_id = request1.result().headers["x-openstack-request-id"]
    assert (waited["method"], waited["path"], waited["request_id"]) == ("GET", SERVERS, request1_id)
    assert sum(event["refused"] for event in api.events("api.drained")) == 2


def test_a_pause_in_progress_is_accepted_and_done_although_the_api_has_gone(serve, fake_cloud, token, later):
    api, sdk = serve(), fake_cloud.sdk()
    flavor, image = sdk.compute.find_flavor("m1.nano"), sdk.image.find_image("micro")
    server = sdk.compute.create_server(name="server1", flavor_id=flavor.id, image_id=image.id, networks="none")
    sdk.compute.wait_for_server(server, wait=60)
    cell = fake_cloud.sdk(admin=True).compute.get_server(server.id).compute_host.replace("host", "cell")
    workers = api.workers()
    eventually("each process has reported its version", lambda: set(workers) <= reported(fake_cloud), seconds=30)
    with sqlite3.connect(fake_cloud.directory / f"{cell}.sqlite3", isolation_level=None) as database:
        database.execute("BEGIN IMMEDIATE")  # nobody else writes to the cell now
        request1 = later(ask, api.port, f"{SERVERS}/{server.id}/action", "POST", {"pause": None}, X_Auth_Token=token)
        api.wait_until_reached()
        api.send(signal.SIGTERM)
        in_progress(api)
        eventually("they have taken it back", lambda: not reported(fake_cloud) & set(workers), seconds=10)
        assert not request1.done()
        database.execute("ROLLBACK")
    assert request1.result().status == 202
    assert api.wait() == 0
    eventually("PAUSED", lambda: sdk.compute.get_server(server.id).status == "PAUSED", seconds=30)


def test_a_new_request_is_denied_at_once_although_every_thread_is_busy(serve, fake_cloud, token, later):
    api = serve()
    with no_reads(fake_cloud):
        busy = [later(ask, api.port, SERVERS, X_Auth_Token=token) for _ in range(40)]  # 2 x 16 threads
        api.wait_until_reached(40)
        api.send(signal.SIGTERM)
        in_progress(api, 40)
        asked = time.monotonic()
        assert [ask(api.port, SERVERS).status for _ in range(10)] == [503] * 10
        assert time.monotonic() - asked < fair(AT_ONCE)
    assert [one.result().status for one in busy] == [200] * 40  # also those that no thread had begun
    assert api.wait() == 0


def test_an_upload_is_waited_for_and_a_second_sigterm_changes_nothing(serve, token):
    api = serve()
    upload = Upload(api, token)
    api.send(signal.SIGTERM)
    in_progress(api)
    for _ in range(4):
        api.send(signal.SIGTERM)
        time.sleep(0.5)
        upload.feed(10)
    assert upload.finish() == 204
    assert api.wait() == 0
    assert sum(event["finished"] for event in api.events("api.drained")) == 1


def test_the_timeout_cuts_off_and_says_what(serve, token):
    api = serve(STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="3")
    upload = Upload(api, token)
    asked = api.send(signal.SIGTERM)
    assert api.wait() == 1
    assert 3 <= time.monotonic() - asked < 4 + fair(AT_ONCE)
    [cut] = api.events("api.request_cut")
    assert (cut["method"], cut["path"], cut["reason"]) == ("PUT", upload.path, "GRACEFUL_SHUTDOWN_TIMEOUT is over")
    assert cut["request_id"].startswith("req-")
    assert 3 <= cut["age"] < 5 + fair(1)


def test_a_timeout_of_0_is_endless(serve, token):
    api = serve(STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="0")
    upload = Upload(api, token)
    api.send(signal.SIGTERM)
    in_progress(api)
    time.sleep(5)
    assert api.runs()
    assert upload.finish() == 204
    assert api.wait() == 0


def test_idle_connections_hold_up_nobody(serve):
    api = serve()
    kept, silent = HTTPConnection("127.0.0.1", api.port), socket.create_connection(("127.0.0.1", api.port))
    assert ask_on(kept, "/healthz").status == 200
    asked = api.send(signal.SIGTERM)
    assert api.wait() == 0
    assert time.monotonic() - asked < fair(2)
    assert kept.sock.recv(1) == silent.recv(1) == b""  # closed, not reset


@pytest.mark.parametrize("last", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGQUIT)])
def test_sigint_drains_and_the_second_is_now(serve, token, last):
    first, second = last
    api = serve()
    upload = Upload(api, token)
    api.send(first)
    in_progress(api)
    time.sleep(1)
    assert api.runs()
    asked = api.send(second)
    assert api.wait() == 1
    assert time.monotonic() - asked < fair(AT_ONCE)
    assert [cut["path"] for cut in api.events("api.request_cut")] == [upload.path]
