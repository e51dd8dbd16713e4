"""The processor time of one request, by layer: `GET /servers/{id}` and a page of 50 servers of four cells.

Each request is made in this process through Django's WSGI handler, and over HTTP to one gunicorn process, whose own
processor time is read. The difference is gunicorn's part. `/healthz` needs no token, no database and no JSON: what it
takes is Django's part. The catalog needs a token and writes JSON: what it takes more is that of DRF and the token.
"""

from __future__ import annotations

import http.client
import io
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from django.core.wsgi import get_wsgi_application

from bench import world
from cells.models import InstanceMapping
from deploy.local.ports import any_free

CELLS, SERVERS = 4, 4000
ROUNDS, REQUESTS, WARM = 9, 100, 30
_Call = Callable[[], Any]


def run(state: Path) -> list[dict[str, Any]]:
    """Return a row for each kind of request; times are medians of rounds, in milliseconds of processor time."""
    try:
        token = world.token()
        world.make_cells(state, CELLS, SERVERS)
        server = f"/compute/v2.1/servers/{InstanceMapping.objects.order_by('pk').values_list('pk', flat=True)[77]}"
        kinds = {
            "health": ("/healthz", "2.1"), "catalog": ("/identity/v3/auth/catalog", "2.1"),
            "show, 2.1": (server, "2.1"), "show, 2.96": (server, "2.96"),
            "page of 50, 2.1": ("/compute/v2.1/servers/detail?limit=50", "2.1"),
            "page of 50, 2.96": ("/compute/v2.1/servers/detail?limit=50", "2.96"),
        }  # fmt: skip
        with world.gunicorn(state, any_free(), processes=1) as url:
            return [_measure(name, url, path, _headers(token, version)) for name, (path, version) in kinds.items()]
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _headers(token: str, version: str) -> dict[str, str]:
    return {"X-Auth-Token": token, "OpenStack-API-Version": f"compute {version}"}


def _measure(name: str, url: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    here, there = _in_process(path, headers), _over_http(url, path, headers)
    process, worker = psutil.Process(), _worker()
    for call in (here, there):
        for _ in range(WARM):
            call()
    # interleaved, so that other load of the machine falls on both
    rounds = [(_used(process, here), _used(worker, there)) for _ in range(ROUNDS)]
    in_process, http_ms = (round(statistics.median(column), 2) for column in zip(*rounds, strict=True))
    return {"request": name, "in_process_ms": in_process, "http_ms": http_ms}


def _used(process: psutil.Process, call: _Call) -> float:
    """Return the processor time of one call, in milliseconds, of a process that makes or answers REQUESTS of them."""
    before = process.cpu_times()
    for _ in range(REQUESTS):
        call()
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / REQUESTS * 1000


def _worker() -> psutil.Process:
    """Return the only process of gunicorn that answers requests."""
    masters = [one for one in psutil.Process().children() if "gunicorn" in " ".join(one.cmdline())]
    return masters[0].children()[0]


def _in_process(path: str, headers: dict[str, str]) -> _Call:
    application = get_wsgi_application()
    path, _, query = path.partition("?")
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, "SCRIPT_NAME": "",
        "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr,
        **{f"HTTP_{name.upper().replace('-', '_')}": text for name, text in headers.items()},
    }  # fmt: skip

    def call() -> bytes:
        status: list[str] = []
        answer = application({**environ, "wsgi.input": io.BytesIO()}, lambda line, *_: status.append(line))
        body = b"".join(answer)
        answer.close()
        assert status[0].startswith("200"), body[:500]
        return body

    return call


def _over_http(url: str, path: str, headers: dict[str, str]) -> _Call:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def call() -> bytes:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return body

    return call
