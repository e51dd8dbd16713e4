"""Clients of the cloud of three machines: those of tests/chaos, with the operations that QEMU does in seconds."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import openstack

from deploy.guests import micro
from tests.chaos.ledger import KINDS, Finding
from tests.chaos.story import IMAGES, Story
from tests.live.cloud import eventually
from tests.machines.books import Books
from tests.machines.site import Site

CLIENTS = 3
LONGEST = 1800.0
FLAVOR = "42"
LEGAL = {
    "ACTIVE": ["stop", "hard reboot", "pause", "live-migrate", "live-migrate", "migrate", "delete"],
    "SHUTOFF": ["start", "start", "delete"],
    "PAUSED": ["unpause"],
    "VERIFY_RESIZE": ["confirm", "revert"],
    "ERROR": ["delete"],
}


class Users:
    """The administrator and a user, and the image of their guests: it prints a counter, and needs 16 MiB."""

    def __init__(self, site: Site) -> None:
        self.site, self.books = site, Books(site)
        self.admin, self.demo = self._login("admin"), self._login("demo")
        disk = site.network.folder / "ticks.img"
        [guest] = [one for one in micro.FAMILY if one.name == "micro-ticks"]
        micro.build(disk, guest=guest)
        content = disk.read_bytes()
        self.image = self.admin.image.create_image(
            "ticks", data=content, md5=hashlib.md5(content).hexdigest(), disk_format="raw", container_format="bare",
            visibility="public", validate_checksum=False,
        ).id  # fmt: skip
        self.admin.compute.update_quota_set(self.demo.current_project_id, instances=200, cores=400, ram=400_000)

    def boot(self, name: str) -> Any:
        """A server that is ACTIVE."""
        made = self.demo.compute.create_server(name=name, image_id=self.image, flavor_id=FLAVOR, networks="none")
        return self.demo.compute.wait_for_server(made, wait=180)

    def host_of(self, server: Any) -> str:
        """The host it is on."""
        return str(self.admin.compute.get_server(server.id).compute_host)

    def ticks(self, server: Any) -> int:
        """The last number on its console: 0 after a restart."""
        lines = self.demo.compute.get_server_console_output(server.id)["output"].split()
        return max((int(word) for word in lines if word.isdigit()), default=-1)

    def _login(self, user: str) -> Any:
        return openstack.connect(
            auth_url=f"{self.site.url}/identity/v3", username=user, password=self.site.secret(f"{user}-password"),
            project_name=user, user_domain_name="Default", project_domain_name="Default",
            cacert=str(self.site.network.folder / "ca.crt"),
        )  # fmt: skip


class Load:
    """Clients at work, and what became of their requests."""

    def __init__(self, users: Users, title: str) -> None:
        place = SimpleNamespace(
            cloud=SimpleNamespace(url=users.site.url), token=users.demo.auth_token, admin_token=users.admin.auth_token,
            images=dict.fromkeys(IMAGES, users.image),
        )  # fmt: skip
        os.environ["REQUESTS_CA_BUNDLE"] = str(users.site.network.folder / "ca.crt")  # of the clients
        self.users, self.title = users, title
        self.story = Story(place, f"load{int(time.time())}", 10**9, LEGAL)  # type: ignore[arg-type]
        self.findings: list[Finding] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Ask until the end of the block; then wait for rest, and compare."""
        clients = threading.Thread(target=self.story.tell, args=(1, CLIENTS, LONGEST), daemon=True)
        clients.start()
        try:
            yield
        finally:
            self.story.wanted = 0
            clients.join(120)
        self.users.books.rest()
        self.findings = self.users.books.findings(self.story.asked, self.story.prefix)
        self._clear()

    def wait_for(self, more: int, seconds: float = 600) -> None:
        """Wait until so many more operations were accepted."""
        before = self.story.count()
        eventually(f"{more} more operations are accepted", lambda: self.story.count() >= before + more, seconds)

    def _clear(self) -> None:
        """Delete its servers: those that come next need the room."""
        for server in self.users.demo.compute.servers(details=False):
            if server.name.startswith(self.story.prefix):
                self.users.demo.compute.delete_server(server)
        self.users.books.rest()

    @property
    def failed(self) -> Counter[int]:
        """Requests without an answer (0), or answered with a fault of the cloud's."""
        return Counter(one.status for one in self.story.asked if one.accepted is None)

    def __str__(self) -> str:
        kinds = Counter(one.kind for one in self.findings)
        return (f"{self.story.count()} operations accepted, failed {self.failed.total()}, "
                + ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS))  # fmt: skip
