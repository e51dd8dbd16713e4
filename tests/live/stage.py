"""A stage for stories about stopping: servers where the story wants them, and who does what there.

stage.boot(3, host="host1", image=SLOW)   ids of servers that are ACTIVE there
stage.ask(uuid, {"pause": None})          the status of POST /servers/{id}/action
stage.effects(uuid)                       what the fake hypervisors did to a guest, in order
stage.stop("host1", signal.SIGTERM)       send it, and a Stopping that knows how long it took
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import requests

from cloud.processes import Daemon, alive
from compute.virt.fake.faults import parse_faults
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.machine import fair

FLAVOR = "42"  # m1.nano
SECONDS = 30


@dataclass
class Stopping:
    """A process that was told to stop."""

    pid: int
    told_at: float

    @property
    def running(self) -> bool:
        """Whether it still is there."""
        return alive(self.pid)

    def ended(self, seconds: float) -> float:
        """Wait for its end; the moment it was seen (seconds since 1970)."""
        limit = time.monotonic() + fair(seconds)
        while self.running:
            assert time.monotonic() < limit, f"pid {self.pid} still runs after {seconds:g} s"
            time.sleep(0.01)
        return time.time()


class Stage:
    """One simulated cloud, and the admin who works on it."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        cloud.do("quota", "set", "--instances", "300", "--cores", "600", "--ram", "614400", "admin", admin=True)
        self._sdk = cloud.sdk(admin=True)
        self._headers = {"X-Auth-Token": self._sdk.auth_token, "OpenStack-API-Version": "compute 2.96"}
        self._images: dict[str, str] = {}

    def image(self, **faults: str) -> str:
        """An image whose guests take their time: image(reboot_hard_delay="5"). ValueError if there is no such fault."""
        name = ",".join(f"{fault}={value}" for fault, value in sorted(faults.items())) or "plain"
        if name not in self._images:
            kind = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
            parse_faults(",".join(f"{'.'.join(fault.rsplit('_', 1))}={value}" for fault, value in faults.items()))
            fake = {f"fake_{fault}": value for fault, value in faults.items()}
            mine = f"{name}-{uuid4().hex[:8]}"  # tests that share a cloud have images of one kind each
            made = self._sdk.image.create_image(mine, data=b"\0" * 512, validate_checksum=False, **kind, **fake)
            self._images[name] = made.id
        return self._images[name]

    def order(self, image: str, host: str = "", name: str = "s", **more: Any) -> str:
        """Ask for one server; its id. AssertionError unless it was accepted."""
        server = {"name": name, "imageRef": image, "flavorRef": FLAVOR, "networks": "none", **more}
        if host:
            server["host"] = host
        answer = self.call("POST", "/servers", {"server": server})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["server"]["id"])

    def boot(self, count: int, host: str = "", image: str = "", name: str = "s") -> list[str]:
        """So many servers, ACTIVE."""
        ids = [self.order(image or self.image(), host, f"{name}{n}") for n in range(count)]
        for uuid in ids:
            self.wait(uuid, "ACTIVE")
        return ids

    def call(self, method: str, path: str, body: Any = None) -> requests.Response:
        """One request of the compute API."""
        url = f"{self.cloud.url}/compute/v2.1{path}"
        return requests.request(method, url, json=body, headers=self._headers, timeout=SECONDS)

    def ask(self, uuid: str, body: dict[str, Any]) -> int:
        """POST an action; the status."""
        return self.call("POST", f"/servers/{uuid}/action", body).status_code

    def show(self, uuid: str) -> dict[str, Any]:
        """The server; {} when it is gone."""
        answer = self.call("GET", f"/servers/{uuid}")
        return dict(answer.json()["server"]) if answer.status_code == 200 else {}

    def wait(self, uuid: str, status: str, seconds: float = 60) -> None:
        """Until the server has a status and nothing goes on; DELETED: until it is gone."""

        def there() -> bool:
            shown = self.show(uuid)
            if status == "DELETED":
                return not shown
            fault = shown.get("fault", {}).get("message")
            assert not (status == "ACTIVE" and shown.get("status") == "ERROR" and fault), f"{uuid} is ERROR: {fault}"
            return shown.get("status") == status and shown["OS-EXT-STS:task_state"] is None

        eventually(f"{uuid} is {status}", there, seconds, 0.1)

    def service(self, host: str) -> dict[str, Any]:
        """Its line in os-services."""
        (found,) = self.call("GET", f"/os-services?host={host}").json()["services"]
        return dict(found)

    def effects(self, uuid: str) -> list[str]:
        """What was done to a guest, on every host, in order."""
        return [what for _, what in sorted(self.timed_effects(uuid))]

    def timed_effects(self, uuid: str) -> list[tuple[float, str]]:
        """The same with the moment (seconds since 1970)."""
        found: list[tuple[float, str]] = []
        for host in self.cloud.state.hosts:
            with sqlite3.connect(self.cloud.state.path("hosts", host, "state", "guests.sqlite3")) as database:
                found += database.execute("SELECT at, verb FROM effects WHERE uuid = ?", (uuid,)).fetchall()
        return found

    def steps(self, cell: str, columns: str, where: str) -> list[tuple[Any, ...]]:
        """Rows of a cell's journal."""
        with sqlite3.connect(self.cloud.directory / f"{cell}.sqlite3", timeout=30) as database:
            return database.execute(f"SELECT {columns} FROM compute_step WHERE {where} ORDER BY id").fetchall()

    def running(self, uuid: str, cell: str = "cell1", seconds: float = 20) -> None:
        """Wait until a step of the server runs."""
        where = f"server_id = '{uuid}' AND state = 'running'"
        eventually(f"a step of {uuid} runs", lambda: self.steps(cell, "id", where), seconds, 0.02)

    def stop(self, name: str, sig: signal.Signals = signal.SIGTERM) -> Stopping:
        """Signal a process; does not wait."""
        pid = self.cloud.daemon(name).pid()
        assert pid, f"{name} does not run"
        now = time.time()
        os.kill(pid, sig)
        return Stopping(pid, now)

    def restart_with(self, *names: str, **settings: str) -> None:
        """Restart some workers with other STILLWATER_ settings."""
        self.cloud.settings |= {f"STILLWATER_{name}": value for name, value in settings.items()}
        for stopping in [self.stop(name) for name in names]:
            stopping.ended(60)
        self.cloud.up()

    def forget_setting(self, name: str) -> None:
        """Workers that start from now on have the default again."""
        self.cloud.settings.pop(name, None)
        file = self.cloud.directory / "stillwater.env"  # the cloud keeps what was exported once
        kept = [line for line in file.read_text().splitlines() if not line.startswith(f"{name}=")]
        file.write_text("\n".join(kept) + "\n")

    @contextmanager
    def twin(self, name: str) -> Iterator[Daemon]:
        """A second worker beside a scheduler or conductor, on the same queue."""
        state, twin = self.cloud.state, f"{name}-twin"
        env_file = state.path("env", f"{twin}.env")
        lines = state.path("env", f"{name}.env").read_text().splitlines()
        kept = [line for line in lines if not line.startswith("STILLWATER_HOST=")]
        env_file.write_text("\n".join([*kept, f"STILLWATER_HOST={twin}"]) + "\n")
        pidfile = state.pidfile(twin)
        self.cloud.manage("host", "start", twin)
        try:
            yield Daemon(twin, pidfile, f"--pidfile={pidfile}", state.log(twin))
        finally:
            self.cloud.manage("host", "stop", twin)

    def empty(self) -> None:
        """Delete every server."""
        for row in books.rows(self.cloud):
            assert self.call("DELETE", f"/servers/{row.uuid}").status_code in (204, 404)
        assert books.settled(self.cloud) == []
        books.check(self.cloud)
