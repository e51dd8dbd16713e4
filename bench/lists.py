"""GET /servers/detail?limit=1000 and ?limit=50, beside their floor: the same rows by one SQL query and orjson.dumps.

The floor reads the columns of the answer, in the order of the answer, from one SQLite file with all servers, and writes
as much JSON as the answer has: no HTTP, no token, no cells, no Django. Newer servers are spread evenly over the cells.
"""

from __future__ import annotations

import http.client
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from django.test import Client

from bench import world
from bench.place import PROJECT
from cells.models import Cell
from compute.servers import rows
from deploy.local.ports import any_free
from tests.api.queries import counted

LIMITS = (1000, 50)
SIZES = ((1000, 1), (1000, 4), (1000, 10), (10_000, 1), (10_000, 4), (10_000, 10), (10_000, 100), (100_000, 100))
ROUNDS, WARM = 15, 4
JSON_COLUMNS = {"flavor", "metadata", "addresses", "fault"}


def run(state: Path) -> list[dict[str, Any]]:
    """Return a row of numbers for each number of servers, of cells, and size of the page.

    Times are medians in milliseconds; `cpu_ms` is the processor time of all threads of a request in this process.
    """
    try:
        token = world.token()
        return [row for servers, cells in SIZES for row in _measure(state, token, servers, cells)]
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _measure(state: Path, token: str, servers: int, cells: int) -> list[dict[str, Any]]:
    floor_file = _one_file(state, servers)
    world.make_cells(state, cells, servers)
    with world.gunicorn(state, any_free()) as url:
        return [_measure_page(token, url, floor_file, limit) | {"servers": servers, "cells": cells} for limit in LIMITS]


def _measure_page(token: str, url: str, floor_file: Path, limit: int) -> dict[str, Any]:
    queries, length = _queries(token, limit)
    floor, in_process = _floor(floor_file, limit, length), _in_process(token, limit)
    over_http = _over_http(url, token, limit)
    # interleaved, so that other load of the machine falls on all three
    times = [(_timed(floor), _timed(over_http), _timed(in_process)) for _ in range(WARM + ROUNDS)][WARM:]
    medians = [statistics.median(one[0] for one in column) * 1000 for column in zip(*times, strict=True)]
    cpu = statistics.median(one[2][1] for one in times) * 1000
    return {
        "limit": limit, "queries": queries, "bytes": length,
        "floor_ms": round(medians[0], 2), "http_ms": round(medians[1], 2), "in_process_ms": round(medians[2], 2),
        "cpu_ms": round(cpu, 2),
        "ratio": round(medians[1] / medians[0], 2), "ratio_in_process": round(medians[2] / medians[0], 2),
    }  # fmt: skip


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that passed, and those of the processor."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


def _one_file(state: Path, servers: int) -> Path:
    """Create one cell with all the servers, and return the file of its database."""
    world.make_cells(state, 1, servers)
    return Path(urlsplit(Cell.objects.get().database_url).path)


def _floor(file: Path, limit: int, length: int) -> Callable[[], bytes]:
    names = [rows._TEXTS.get(name, name) for name in rows.ServerRow._fields]
    sql = (
        f"SELECT {', '.join(names)} FROM compute_instance WHERE project_id = ? AND deleted = 0 "
        f"ORDER BY created_at DESC, uuid LIMIT {limit}"
    )
    connection = sqlite3.connect(file)
    fragments = [index for index, name in enumerate(names) if name in JSON_COLUMNS]

    def work(padding: str = "") -> bytes:
        servers = []
        for row in connection.execute(sql, (PROJECT,)):
            server = dict(zip(names, row, strict=True))
            for index in fragments:
                if row[index] is not None:
                    server[names[index]] = orjson.Fragment(row[index])
            server["rest"] = padding
            servers.append(server)
        return orjson.dumps({"servers": servers})

    missing = (length - len(work())) // limit  # links and long names: the floor writes as much text as the answer
    padded = "x" * max(0, missing)
    assert abs(len(work(padded)) - length) < length / 20
    return lambda: work(padded)


def _over_http(url: str, token: str, limit: int) -> Callable[[], bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def work() -> bytes:
        connection.request("GET", _path(limit), headers=_headers(token))
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:500]
        return body

    assert len(orjson.loads(work())["servers"]) == limit
    return work


def _path(limit: int) -> str:
    return f"/compute/v2.1/servers/detail?limit={limit}"


def _headers(token: str) -> dict[str, str]:
    return {"X-Auth-Token": token, "OpenStack-API-Version": "compute 2.96"}


def _in_process(token: str, limit: int) -> Callable[[], bytes]:
    client = Client(headers=_headers(token), SERVER_NAME="localhost")
    return lambda: client.get(_path(limit)).content


def _queries(token: str, limit: int) -> tuple[int, int]:
    """Return (queries to all cells, bytes of the answer)."""
    with counted() as seen:
        body = _in_process(token, limit)()
    assert len(orjson.loads(body)["servers"]) == limit, body[:500]
    return sum(len(found) for alias, found in seen.items() if alias != "default"), len(body)
