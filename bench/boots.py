"""Boots per second: a whole cloud on fake hosts, from the first POST until every server is ACTIVE."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.live.cloud import Cloud

CLIENTS = 8
QUOTA = {"STILLWATER_QUOTA_INSTANCES": "-1", "STILLWATER_QUOTA_CORES": "-1", "STILLWATER_QUOTA_RAM": "-1"}
LATEST = 300  # seconds


def run(servers: int) -> dict[str, Any]:
    """Start a cloud, boot the servers, end the cloud. Times are in seconds."""
    cloud = Cloud("fake", **QUOTA)
    try:
        cloud.up()
        accepted, active = _boot(cloud, servers)
    finally:
        cloud.end()
    floor = _floor(servers)
    return {
        "servers": servers, "clients": CLIENTS, "accepted_s": round(accepted, 2), "active_s": round(active, 2),
        "per_second": round(servers / active, 1), "floor_s": round(floor, 3), "ratio": round(active / floor, 1),
    }  # fmt: skip


def _boot(cloud: Cloud, servers: int) -> tuple[float, float]:
    """Return the seconds until all were accepted, and until all were ACTIVE."""
    sdk = cloud.sdk()
    flavor = min(sdk.compute.flavors(), key=lambda f: (f.ram, f.vcpus))
    image = min(sdk.image.images(), key=lambda i: i.size or 0)
    headers = {"X-Auth-Token": sdk.auth_token, "OpenStack-API-Version": "compute 2.96",
               "Content-Type": "application/json"}  # fmt: skip

    def call(method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", cloud.port, timeout=60)
        connection.request(method, f"/compute/v2.1{path}", json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, text
        return json.loads(text)

    def post(number: int) -> None:
        body = {"name": f"bench-{number}", "flavorRef": flavor.id, "imageRef": image.id, "networks": "none"}
        call("POST", "/servers", {"server": body})

    begun = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(post, range(servers)))
    accepted = time.monotonic() - begun
    while time.monotonic() - begun < LATEST:
        found = [server["status"] for server in call("GET", "/servers/detail?name=^bench-")["servers"]]
        assert "ERROR" not in found, "a boot failed"
        if found == ["ACTIVE"] * servers:
            return accepted, time.monotonic() - begun
        time.sleep(0.05)
    raise AssertionError(f"not all ACTIVE after {LATEST} s")


def _floor(servers: int) -> float:
    """Return the seconds to insert and update as many rows in SQLite, each change in its own transaction."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "floor.sqlite3", isolation_level=None)
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
        connection.execute("CREATE TABLE server (id TEXT PRIMARY KEY, state TEXT, host TEXT, at TEXT, body TEXT)")
        begun = time.perf_counter()
        for number in range(servers):
            now = datetime.now(UTC).isoformat()
            connection.execute("INSERT INTO server VALUES (?, 'building', '', ?, ?)", (str(number), now, "x" * 2000))
            connection.execute(
                "UPDATE server SET state = 'active', host = 'h', at = ? WHERE id = ?", (now, str(number))
            )
        took = time.perf_counter() - begun
        connection.close()
    os.sync()
    return took
