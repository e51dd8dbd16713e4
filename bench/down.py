"""Requests while a cell is down, beside the same requests with all cells up: refused, silent, and slow by 5 s.

Ten cells and their servers are on one PostgreSQL server; three of the cells are reached through breakable proxies.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from cells.models import CELL0, BuildRequest, Cell, InstanceMapping, RequestSpec
from cloud.images.models import Image
from compute.models import Flavor, Instance, Quota
from deploy.local.ports import any_free
from tests.servers.postgres import Server

CLIENTS = (1, 16)
PREFIX = "/compute/v2.1"
HARMS = ("refuse", "silent", "slow")
BACK_SECONDS = 60
Ask = Callable[[http.client.HTTPConnection], float]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the cloud and of each measurement. Published results are of the default size."""

    cells: int = 10
    servers: int = 10_000
    requests: int = 200


@dataclass(slots=True)
class ProxiedCell:
    """A cell that is reached through a proxy, and one of its servers."""

    proxy: Proxy
    server_id: str


@dataclass(slots=True)
class Site:
    """The API under test, and the requests to it."""

    url: str
    token: str
    asks: dict[str, Ask]
    size: Size

    def mix(self, road: ProxiedCell) -> list[tuple[str, Ask]]:
        """Return all kinds of requests in turn; every sixth shows a server of the cell that will be broken."""
        kinds = self.asks | {"show there": _ask("GET", f"/servers/{road.server_id}", self.token)}
        return list(islice(cycle(kinds.items()), self.size.requests))


def run(state: Path, server: Server, size: Size) -> dict[str, Any]:
    """Measure with all cells up and with each fault, in one run. Times are in milliseconds."""
    token, roads = world.token(), []
    try:
        roads = _cells(server, size)
        with world.gunicorn(state, any_free()) as url:
            site = Site(url, token, _asks(token, size), size)
            measured: dict[str, Any] = {}
            for clients in CLIENTS:
                _timed(site, site.mix(roads[0]), clients)  # warm up
                measured |= _all(site, roads, clients)
        return {"cells": size.cells, "servers": size.servers, "requests": size.requests,
                "timeout_s": settings.CELL_TIMEOUT, "retry_s": settings.CELL_RETRY_INTERVAL,
                "measured": measured}  # fmt: skip
    finally:
        for road in roads:
            road.proxy.end()
        connections.close_all()
        shutil.rmtree(state, ignore_errors=True)


def _all(site: Site, roads: list[ProxiedCell], clients: int) -> dict[str, Any]:
    """Measure each fault twice, and all up before, between and after: the machine's speed drifts by 1/3 in a minute."""
    found = {}
    for harm, road in zip(HARMS, roads, strict=True):
        asks, half = site.mix(road), site.size.requests // 2
        up = _timed(site, asks[:half], clients)
        harmed, firsts, backs = [], [], []
        for part in (asks[:half], asks[half:]):
            road.proxy.order(harm)
            firsts += _timed(site, asks[:clients], clients)
            harmed += _timed(site, part, clients)
            road.proxy.order("up")
            backs.append(_back(site, harm))
            up += _timed(site, part, clients)
        found[f"{harm} {clients}"] = _figures(harmed) | {
            "first_ms": _ms(max(took for _, took in firsts)), "back_s": max(backs), "up": _figures(up),
        }  # fmt: skip
    return found


def _back(site: Site, harm: str) -> float:
    """Return the seconds until the API finds the cell again. Raises RuntimeError after BACK_SECONDS."""
    begun = time.monotonic()
    while _unknown(site):
        if time.monotonic() - begun > BACK_SECONDS:
            raise RuntimeError(f"the cell that was {harm} is not found back")
        time.sleep(0.05)
    return round(time.monotonic() - begun, 2)


def _cells(server: Server, size: Size) -> list[ProxiedCell]:
    """Create databases, tables and servers. Return the cells that are reached through a proxy."""
    roads: list[ProxiedCell] = []
    unlimited = ("instances", "cores", "ram")
    Quota.objects.bulk_create(Quota(project_id=PROJECT, resource=name, limit=-1) for name in unlimited)
    Flavor.objects.create(flavor_id="1", name="m1.tiny", vcpus=1, memory_mb=64, disk_gb=1, extra_specs={})
    Image.objects.create(id=str(uuid4()), name="tiny", status="active", visibility="public", owner=PROJECT,
                         disk_format="raw", container_format="bare", size=512, virtual_size=512)  # fmt: skip
    for index in range(size.cells + 1):
        name, cell_id = f"cell{index}", str(uuid4()) if index else CELL0
        server.create(f"bench_{name}")
        url = f"{server.url}/bench_{name}"
        if 1 <= index <= len(HARMS):
            roads.append(ProxiedCell(Proxy(server.port), ""))
            url = url.replace(f":{server.port}/", f":{roads[-1].proxy.port}/")
        cell = Cell.objects.create(id=cell_id, name=name, database_url=url)
        with target_cell(cell) as alias:
            world.migrate(alias)
            if index:
                rows.fill(range(index - 1, size.servers, size.cells))
                one = _map(cell)
                if index <= len(HARMS):
                    roads[-1].server_id = one
            connections[alias].cursor().execute("VACUUM ANALYZE")
        connections[alias].close()
    connections["default"].cursor().execute("VACUUM ANALYZE")
    return roads


def _map(cell: Cell) -> str:
    """Create the mappings and request specs of a cell's servers. Return the id of one of them."""
    rows.map_servers(cell)
    servers = list(Instance.objects.all())
    RequestSpec.objects.bulk_create((RequestSpec(
        server_id=one.uuid, project_id=PROJECT, user_id=one.user_id, vcpus=one.vcpus, memory_mb=one.memory_mb,
        disk_gb=one.disk_gb, flavor=one.flavor, image_id=one.image_id,
    ) for one in servers), batch_size=500)  # fmt: skip
    return servers[0].uuid


def _asks(token: str, size: Size) -> dict[str, Ask]:
    """Return one request of each kind. The server of "show" is in a cell without faults."""
    with target_cell(Cell.objects.get(name=f"cell{size.cells}")):
        shown = Instance.objects.values_list("uuid", flat=True)[0]
    image = Image.objects.get().pk
    boot = {"server": {"name": "b", "flavorRef": "1", "imageRef": image, "networks": "none"}}
    return {
        "list": _ask("GET", "/servers", token), "detail": _ask("GET", "/servers/detail", token),
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


def _timed(site: Site, asks: list[tuple[str, Ask]], clients: int) -> list[tuple[str, float]]:
    """Return kind and seconds of each request, sent on `clients` connections in parallel. Delete what was booted."""
    parts = [asks[number::clients] for number in range(clients)]

    def work(part: list[tuple[str, Ask]]) -> list[tuple[str, float]]:
        connection = http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=60)
        try:
            return [(kind, ask(connection)) for kind, ask in part]
        finally:
            connection.close()

    with ThreadPoolExecutor(clients) as pool:
        found = [one for part in pool.map(work, parts) for one in part]
    _forget_boots()
    return found


def _forget_boots() -> None:
    """Delete the booted servers: no scheduler runs, and lists would grow from one measurement to the next."""
    for model in (RequestSpec, InstanceMapping, BuildRequest):
        model.objects.filter(pk__in=BuildRequest.objects.values("pk")).delete()


def _figures(times: list[tuple[str, float]]) -> dict[str, Any]:
    ordered = sorted(took for _, took in times)
    kinds = {kind: statistics.median(took for one, took in times if one == kind) for kind, _ in times}
    return {
        "p50_ms": _ms(statistics.median(ordered)), "p95_ms": _ms(ordered[int(len(ordered) * 0.95)]),
        "max_ms": _ms(ordered[-1]), "kinds_ms": {kind: _ms(took) for kind, took in kinds.items()},
    }  # fmt: skip


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _unknown(site: Site) -> bool:
    """Return whether any of six answers, of any API process, has servers in UNKNOWN."""
    for _ in range(6):
        connection = http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=60)
        connection.request("GET", f"{PREFIX}/servers", headers=_headers(site.token))
        is_there = b"UNKNOWN" in connection.getresponse().read()
        connection.close()
        if is_there:
            return True
    return False
