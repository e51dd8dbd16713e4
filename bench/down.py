"""Requests while a cell is down, beside the same requests with all cells up: refused, silent, and slow by 5 s.

Ten cells and their servers on one PostgreSQL server; three of the cells are reached through proxies that can be broken.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from django.conf import settings
from django.db import connections

from bench import rows, world
from bench.place import PROJECT
from bench.proxy import Proxy
from cells.context import target_cell
from cells.models import CELL0, Cell, InstanceMapping, RequestSpec
from cloud.images.models import Image
from compute.models import Flavor, Instance, Quota
from deploy.local.ports import any_free
from deploy.local.postgres import Server

CELLS, SERVERS, REQUESTS, CLIENTS = 10, 10_000, 200, (1, 16)
PREFIX = "/compute/v2.1"
HARMS = ("refuse", "silent", "slow")
Ask = Callable[[http.client.HTTPConnection], float]


def run(state: Path, server: Server) -> dict[str, Any]:
    """All up, and each harm, in one run; times in milliseconds."""
    token, proxies = world.token(), {}
    try:
        proxies = _cells(server)
        measured = {}
        with world.gunicorn(state, any_free()) as url:
            asks = _asks(token)
            _timed(url, _mix(asks), 4)  # warm
            for clients in CLIENTS:
                measured[f"up {clients}"] = _figures(_timed(url, _mix(asks), clients))
                for harm, cell in zip(HARMS, proxies, strict=True):
                    measured[f"{harm} {clients}"] = _harmed(url, asks, token, proxies[cell], harm, clients)
        return {"cells": CELLS, "servers": SERVERS, "requests": REQUESTS, "timeout_s": settings.CELL_TIMEOUT,
                "retry_s": settings.CELL_RETRY_INTERVAL, "measured": measured}  # fmt: skip
    finally:
        for proxy in proxies.values():
            proxy.end()
        connections.close_all()
        shutil.rmtree(state, ignore_errors=True)


def _harmed(url: str, asks: dict[str, Ask], token: str, proxy: Proxy, harm: str, clients: int) -> dict[str, Any]:
    """The first request (of each client) after the failure, those after it, and how long until all is normal again."""
    proxy.order(harm)
    first = _timed(url, [asks["list"]] * clients, clients)
    found = _figures(_timed(url, _mix(asks), clients)) | {"first_ms": round(max(first) * 1000, 1)}
    proxy.order("up")
    begun = time.monotonic()
    while _unknown(url, token):
        if time.monotonic() - begun > 60:
            raise RuntimeError(f"the cell that was {harm} is not found back")
        time.sleep(0.05)
    return found | {"back_s": round(time.monotonic() - begun, 2)}


def _cells(server: Server) -> dict[str, Proxy]:
    """Databases, tables, servers; the proxies by cell."""
    proxies: dict[str, Proxy] = {}
    unlimited = ("instances", "cores", "ram")
    Quota.objects.bulk_create(Quota(project_id=PROJECT, resource=name, limit=-1) for name in unlimited)
    Flavor.objects.create(flavor_id="1", name="m1.tiny", vcpus=1, memory_mb=64, disk_gb=1, extra_specs={})
    Image.objects.create(id=str(uuid4()), name="tiny", status="active", visibility="public", owner=PROJECT,
                         disk_format="raw", container_format="bare", size=512, virtual_size=512)  # fmt: skip
    for index in range(CELLS + 1):
        name, cell_id = f"cell{index}", str(uuid4()) if index else CELL0
        server.create(f"bench_{name}")
        url = f"{server.url}/bench_{name}"
        if 1 <= index <= len(HARMS):
            proxies[name] = Proxy(server.port)
            url = url.replace(f":{server.port}/", f":{proxies[name].port}/")
        cell = Cell.objects.create(id=cell_id, name=name, database_url=url)
        with target_cell(cell) as alias:
            world.migrate(alias)
            if index:
                rows.fill(range(index - 1, SERVERS, CELLS))
                _map(cell)
        connections[alias].close()
    return proxies


def _map(cell: Cell) -> None:
    servers = list(Instance.objects.all())
    InstanceMapping.objects.bulk_create((InstanceMapping(
        server_id=one.uuid, cell=cell, project_id=PROJECT, user_id=one.user_id, created_at=one.created_at,
    ) for one in servers), batch_size=500)  # fmt: skip
    RequestSpec.objects.bulk_create((RequestSpec(
        server_id=one.uuid, project_id=PROJECT, user_id=one.user_id, vcpus=one.vcpus, memory_mb=one.memory_mb,
        disk_gb=one.disk_gb, flavor=one.flavor, image_id=one.image_id,
    ) for one in servers), batch_size=500)  # fmt: skip


def _asks(token: str) -> dict[str, Ask]:
    """One of each kind. The server that is shown lives in a cell that nothing happens to."""
    with target_cell(Cell.objects.get(name=f"cell{CELLS}")):
        shown = Instance.objects.values_list("uuid", flat=True)[0]
    image = Image.objects.get().pk
    boot = {"server": {"name": "b", "flavorRef": "1", "imageRef": image, "networks": "none"}}
    return {
        "list": _ask("GET", "/servers", token), "detail": _ask("GET", "/servers/detail?limit=100", token),
        "show": _ask("GET", f"/servers/{shown}", token), "services": _ask("GET", "/os-services", token),
        "boot": _ask("POST", "/servers", token, boot),
    }  # fmt: skip


def _ask(method: str, path: str, token: str, body: Any = None) -> Ask:
    def ask(connection: http.client.HTTPConnection) -> float:
        begun = time.perf_counter()
        connection.request(method, f"{PREFIX}{path}", json.dumps(body) if body else None, _headers(token))
        answer = connection.getresponse()
        said = answer.read()
        if answer.status not in (200, 202):
            raise RuntimeError(f"{method} {path}: {answer.status} {said[:300]!r}")
        return time.perf_counter() - begun

    return ask


def _headers(token: str) -> dict[str, str]:
    return {"X-Auth-Token": token, "OpenStack-API-Version": "compute 2.96", "Content-Type": "application/json"}


def _mix(asks: dict[str, Ask]) -> list[Ask]:
    return list(islice(cycle(asks.values()), REQUESTS))


def _timed(url: str, asks: list[Ask], clients: int) -> list[float]:
    """Seconds of each, by so many clients at once, each on its own connection."""
    parts = [asks[number::clients] for number in range(clients)]

    def work(part: list[Ask]) -> list[float]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        try:
            return [ask(connection) for ask in part]
        finally:
            connection.close()

    with ThreadPoolExecutor(clients) as pool:
        return [seconds for part in pool.map(work, parts) for seconds in part]


def _figures(times: list[float]) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1000, 1),
        "max_ms": round(ordered[-1] * 1000, 1),
    }  # fmt: skip


def _unknown(url: str, token: str) -> bool:
    """Whether any of a few answers, of whichever process, still has servers that are UNKNOWN."""
    for _ in range(6):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.request("GET", f"{PREFIX}/servers", headers=_headers(token))
        is_there = b"UNKNOWN" in connection.getresponse().read()
        connection.close()
        if is_there:
            return True
    return False
