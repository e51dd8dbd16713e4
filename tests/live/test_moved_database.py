"""A cell's SQLite file is moved away under real processes, and back: none makes it anew, each recovers by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Answer, ask

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
INTERVAL = 2.0  # between looks at a cell that is down
SOON = 10 * INTERVAL  # on a machine that has more to do
WORKERS = ("conductor-cell1", "host1")


class Site:
    """A cloud on SQLite, and what its user demo asks."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.file = cloud, cloud.directory / "cell1.sqlite3"
        sdk = cloud.sdk()
        self.headers = {"X_Auth_Token": sdk.auth_token, "OpenStack_API_Version": "compute 2.96"}
        self.image = next(image.id for image in sdk.image.images() if image.name == "micro")

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Answer:
        return ask(self.cloud.port, f"/compute/v2.1{path}", method, body, **self.headers)

    def boot(self, name: str) -> str:
        server = {"name": name, "imageRef": self.image, "flavorRef": "42", "networks": "none"}
        return self.ask("/servers", "POST", {"server": server}).json["server"]["id"]

    def servers(self) -> dict[str, str]:
        return {one["id"]: one["status"] for one in self.ask("/servers/detail").json["servers"]}

    def everywhere(self, wanted: dict[str, str]) -> bool:
        """To whichever process of the API answers."""
        return all(self.servers() == wanted for _ in range(8))

    def in_cell1(self, ids: list[str]) -> list[str]:
        there = {uuid for (uuid,) in self.cloud.ask("cell1", "SELECT uuid FROM compute_instance WHERE NOT deleted")}
        return [uuid for uuid in ids if uuid in there]

    def logs(self) -> str:
        """Of all processes."""
        return "".join(file.read_text() for file in Path(self.cloud.directory, "log").glob("*.log"))

    def settle(self) -> dict[str, str]:
        books.settled(self.cloud)
        return self.servers()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Short looks; nothing else differs from a user's."""
    patience = {"STILLWATER_CELL_TIMEOUT": "1", "STILLWATER_CELL_RETRY_INTERVAL": f"{INTERVAL:g}"}
    with Cloud("fake", **patience) as cloud:
        yield Site(cloud)


@pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm")], ids=["wal and shm stay", "all three"])
def test_a_database_that_is_moved_away_and_back_loses_nothing_and_nobody_has_to_be_restarted(site, endings):
    """An accepted delete was shown as ACTIVE, and new connections got "disk I/O error" until workers were killed."""
    cloud, pids = site.cloud, site.cloud.pids()
    ids = [site.boot(f"s{number}") for number in range(6)]
    before = site.settle()
    deleted, *kept = site.in_cell1(ids)
    logged = len(site.logs())

    for ending in endings:
        os.rename(f"{site.file}{ending}", f"{cloud.directory}/elsewhere{ending}")
    away = {uuid: "UNKNOWN" if uuid in (deleted, *kept) else status for uuid, status in before.items()}
    eventually("servers of the cell are UNKNOWN", lambda: site.everywhere(away), SOON)
    assert site.ask(f"/servers/{deleted}", "DELETE").status == 204
    assert site.ask(f"/servers/{kept[0]}/action", "POST", {"os-stop": None}).status == 503
    missed = '"reason": "missing: there is no such file"'
    for name in WORKERS:
        eventually(f"{name} misses it", lambda name=name: missed in cloud.log(name), SOON)
    page = cloud.status()
    assert page.returncode == 1
    assert "the database of cell1 does not answer: missing: there is no such file" in page.stdout
    with pytest.raises(AssertionError, match="the database of cell1 does not answer: missing"):
        cloud.up()
    assert not site.file.exists()

    for ending in reversed(endings):
        os.rename(f"{cloud.directory}/elsewhere{ending}", f"{site.file}{ending}")
    del before[deleted]
    eventually("everything is as it was, and the delete is carried out", lambda: site.everywhere(before), SOON)
    eventually("all is up", lambda: cloud.status().returncode == 0, SOON)
    more = [site.boot(f"more{number}") for number in range(4)]
    site.settle()
    books.check(cloud)
    assert site.in_cell1(more)
    assert cloud.pids() == pids
    since = site.logs()[logged:]
    assert "disk I/O error" not in since
    assert since.count('"event": "cell.down"') <= 8  # one of each process that looks
    for uuid in site.servers():
        site.ask(f"/servers/{uuid}", "DELETE")
    eventually("no servers", lambda: not site.settle(), SOON)
