"""1,000 external events in one request, over ten cells of which one is down, with unknown servers and bad tags.

Ten cells are on one PostgreSQL server; one is reached through a proxy that refuses or stays silent, measured for the
first request and for later ones. The floor writes the same rows in as many transactions by plain SQL.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from django.conf import settings
from django.db import connections, transaction

from bench import rows, world
from bench.proxy import Proxy
from cells.context import target_cell
from cells.models import CELL0, Cell, DeferredEvent
from deploy.local.ports import any_free
from tests.servers.postgres import Server

CELLS, SERVERS, EVENTS, UNKNOWN, BAD, TIMES = 10, 2000, 1000, 10, 10, 7
PATH = "/compute/v2.1/os-server-external-events"
COLUMNS = (
    "server_id, action, key, request_id, user_id, project_id, params, started_at, updated_at, outcome"
), "%s, 'stop', 'Floor', %s, 'u', 'p', %s, now(), now(), ''"
STEP = (
    "action_id, server_id, name, event, host, queue, state, worker, incarnation, attempts, queued_at, sends, details, "
    "traceback"
), "%s, %s, 'power_update', 'compute_power_update', 'h', 'ops', 'queued', '', '', 0, now(), 1, '', ''"


def run(state: Path, server: Server) -> dict[str, Any]:
    """Return the milliseconds of each case, the codes of the events, and the floor."""
    token, proxy = world.token(), None
    try:
        proxy, by_cell = _cells(server)
        measured = {}
        with world.gunicorn(state, any_free(), processes=1) as url:
            _send(url, token, by_cell, {})  # warm up
            measured["all up"] = _figures([_send(url, token, by_cell, {}) for _ in range(TIMES)])
            for harm in ("refuse", "silent"):
                proxy.order(harm)
                first = _send(url, token, by_cell, {})
                later = [_send(url, token, by_cell, {}) for _ in range(TIMES)]
                measured[harm] = _figures(later) | {"first_ms": round(first * 1000, 1)}
                DeferredEvent.objects.all().delete()  # a scheduler would deliver them
                proxy.order("up")
                _until_back(url, token, next(iter(by_cell.values())))
            codes: dict[str, int] = {}
            _send(url, token, by_cell, codes)
        return {
            "cells": CELLS, "servers": SERVERS, "events": EVENTS, "codes": codes, "measured": measured,
            "timeout_s": settings.CELL_TIMEOUT, "floor_ms": _floor(by_cell),
        }  # fmt: skip
    finally:
        if proxy is not None:
            proxy.end()
        connections.close_all()
        shutil.rmtree(state, ignore_errors=True)


def _cells(server: Server) -> tuple[Proxy, dict[str, list[str]]]:
    """Create databases and servers. Return the proxy of the first cell, and the server ids by cell."""
    proxy, by_cell = None, {}
    for index in range(CELLS + 1):
        cell_id = str(uuid4()) if index else CELL0
        server.create(f"events_cell{index}", like="events_cell0" if index else "template1")
        url = f"{server.url}/events_cell{index}"
        if index == 1:
            proxy = Proxy(server.port)
            url = url.replace(f":{server.port}/", f":{proxy.port}/")
        cell = Cell.objects.create(id=cell_id, name=f"cell{index}", database_url=url)
        with target_cell(cell) as alias:
            if index:
                rows.fill(range(index - 1, SERVERS, CELLS))
                by_cell[cell_id] = rows.map_servers(cell)
            else:
                world.migrate(alias)
        connections[alias].close()
    assert proxy is not None
    return proxy, by_cell


def _events(by_cell: dict[str, list[str]]) -> list[dict[str, str]]:
    each = (EVENTS - UNKNOWN - BAD) // CELLS
    good = [(uuid, "POWER_OFF") for servers in by_cell.values() for uuid in servers[:each]]
    bad = [(servers[each], "POWER") for servers in by_cell.values()]
    unknown = [(str(uuid4()), "POWER_ON") for _ in range(UNKNOWN)]
    return [{"name": "power-update", "server_uuid": uuid, "tag": tag} for uuid, tag in (*unknown, *good, *bad)]


def _send(url: str, token: str, by_cell: dict[str, list[str]], codes: dict[str, int]) -> float:
    """Return the seconds from the request to its last byte. Raises RuntimeError for an unexpected code."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"X-Auth-Token": token, "OpenStack-API-Version": "compute 2.76", "Content-Type": "application/json"}
    body = json.dumps({"events": _events(by_cell)})
    begun = time.perf_counter()
    connection.request("POST", PATH, body, headers)
    answer = connection.getresponse()
    said = answer.read()
    seconds = time.perf_counter() - begun
    connection.close()
    found = Counter(str(one["code"]) for one in json.loads(said)["events"])
    if answer.status != 207 or found != {"200": EVENTS - UNKNOWN - BAD, "404": UNKNOWN, "400": BAD}:
        raise RuntimeError(f"{answer.status}: {found}")
    codes.update(found)
    return seconds


def _until_back(url: str, token: str, servers: list[str]) -> None:
    """Wait until the API finds a server of the cell that was down. Raises RuntimeError after 60 s."""
    deadline = time.monotonic() + 60
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    while time.monotonic() < deadline:
        connection.request("GET", f"/compute/v2.1/servers/{servers[0]}", headers={
            "X-Auth-Token": token, "OpenStack-API-Version": "compute 2.96"})  # fmt: skip
        if b'"status":"UNKNOWN"' not in connection.getresponse().read():
            connection.close()
            return
        time.sleep(0.1)
    raise RuntimeError("the cell is not found back")


def _figures(times: list[float]) -> dict[str, float]:
    return {"p50_ms": round(statistics.median(times) * 1000, 1), "max_ms": round(max(times) * 1000, 1)}


def _floor(by_cell: dict[str, list[str]]) -> float:
    """Return the milliseconds to write the rows of one request, one transaction per cell, one after the other."""
    each, spent = (EVENTS - UNKNOWN - BAD) // CELLS, 0.0
    for cell in Cell.objects.filter(pk__in=by_cell):
        with target_cell(cell) as alias:
            connections[alias].ensure_connection()
            begun = time.perf_counter()
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                for uuid in by_cell[cell.pk][:each]:
                    action = f"INSERT INTO compute_instanceaction ({COLUMNS[0]}) VALUES ({COLUMNS[1]}) RETURNING id"
                    cursor.execute(action, [uuid, f"req-{uuid}", "{}"])
                    cursor.execute(
                        f"INSERT INTO compute_step ({STEP[0]}) VALUES ({STEP[1]})", [cursor.fetchone()[0], uuid]
                    )
            spent += time.perf_counter() - begun
    return round(spent * 1000, 1)
