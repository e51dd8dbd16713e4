"""The table of docs/down-cells.md: every request, sent while a cell is down in every way a cell can be."""

from __future__ import annotations

import re
import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell, DeferredDelete, DeferredEvent, HostMapping
from compute.api import urls
from compute.contract.microversion import MAXIMUM, MINIMUM, Version, text
from compute.hosts import services
from compute.models import Aggregate, AggregateHost, InstanceAction, ServerGroup, ServerGroupMember
from compute.operations import registry
from tests.api.servers import IMAGE, server
from tests.byhand import Cloud
from tests.cells import rows
from tests.conftest import PROJECT, client, forget_outages

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "down-cells.md"
ON_THE_GLOBAL_SIDE = re.compile(r"/(flavors|os-keypairs)\b")
UNKNOWN_SINCE = (2, 69)
BODIES: dict[str, dict[str, Any]] = {
    "createBackup": {"name": "b", "backup_type": "d", "rotation": 1}, "createImage": {"name": "i"}, "evacuate": {},
    "os-getConsoleOutput": {}, "os-migrateLive": {"host": None, "block_migration": "auto"}, "reboot": {"type": "HARD"},
    "os-resetState": {"state": "error"}, "rebuild": {"imageRef": IMAGE}, "resize": {"flavorRef": "1"},
}  # fmt: skip
OLD_BODIES = {
    "evacuate": {"onSharedStorage": False},
    "os-migrateLive": {"host": None, "block_migration": False, "disk_over_commit": False},
}


@dataclass(frozen=True)
class Row:
    """One line of the table, for one of its requests; what is told begins with the status."""

    method: str
    path: str
    up: str
    before: str
    since: str

    def told(self, version: Version) -> str:
        return self.since if version >= UNKNOWN_SINCE else self.before


def table() -> list[Row]:
    lines = [line.split("|")[1:-1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    return [
        Row(method, path, *(cell.strip() for cell in line[1:]))
        for line in lines for method, path in re.findall(r"`([A-Z]+) (\S+)`", line[0])
    ]  # fmt: skip


def routes() -> Iterator[tuple[str, str, Any]]:
    """Every path and method that is served, and its view."""
    for pattern in urls._v21:
        path = "/" + re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern))
        view: Any = getattr(pattern.callback, "view_class", None) or pattern.callback.cls
        for method in ("get", "post", "put", "delete"):
            if not path.endswith("/") and hasattr(view, method) and method in view.http_method_names:
                yield method.upper(), path, view


VIEWS = {(method, path): view for method, path, view in routes()}
LATER = {("DELETE", "/servers/{server_id}/migrations/{migration_id}"): (2, 24)}  # than the rest of its view


def versions(row: Row) -> list[Version]:
    """The first and the last before 2.69, and from then on, at which it is served."""
    view = VIEWS[row.method, row.path]
    first = max(view.since, LATER.get((row.method, row.path), MINIMUM))
    last = min(view.until, MAXIMUM)
    wanted = (first, (2, 68), UNKNOWN_SINCE, last)
    return sorted({version for version in wanted if first <= version <= last})


class Place:
    """A server and a host of a cell with what belongs to them; what is asked of them."""

    def __init__(self, cloud: Cloud, cell: Cell) -> None:
        name = uuid4().hex
        self.cell, self.api, self.image = cell, client("admin", project=PROJECT), cloud.image.id
        self.host, self.zone = f"host-{name}", f"zone-{name}"
        self.server_id = server(cell, name, metadata={"a": "1"}, tags=",t,", addresses={"net": []})
        self.service = rows.service(cell, self.host, availability_zone=self.zone)
        self.node = rows.node(cell, self.host, started_at=timezone.now())
        HostMapping.objects.create(host=self.host, cell=cell)
        self.aggregate = Aggregate.objects.create(name=name)
        AggregateHost.objects.create(aggregate=self.aggregate, host=self.host)
        self.empty = Aggregate.objects.create(name=f"{name}-empty")
        self.group = ServerGroup.objects.create(name=name, policy="affinity", project_id=PROJECT, user_id="u")
        ServerGroupMember.objects.create(group=self.group, server_id=self.server_id)
        with target_cell(cell):
            InstanceAction.objects.create(
                server_id=self.server_id, key="Pause", action="pause", request_id="req-1", project_id=PROJECT,
                user_id="u", started_at=timezone.now(), updated_at=timezone.now(),
            )  # fmt: skip

    def send(self, row: Row, version: Version, body: Any = None) -> Any:
        known = self._names(row, old=version < (2, 53))
        path = re.sub(r"{(\w+)}", lambda match: known[match[1]], row.path)
        return self.api.send(row.method.lower(), path, body or self._body(row, version), version=text(version))

    def _names(self, row: Row, *, old: bool) -> dict[str, str]:
        service, node = self.service.uuid, self.node.uuid
        names = {
            "server_id": self.server_id, "key": "a", "tag": "t" if row.method != "PUT" else "new", "label": "net",
            "migration_id": "1", "action_id": "req-1", "project_id": PROJECT, "group_id": self.group.uuid,
            "aggregate_id": str((self.empty if row.method == "DELETE" else self.aggregate).pk),
            "service_id": str(services.number(service)) if old else service,
            "hypervisor_id": str(services.number(node)) if old else node,
        }  # fmt: skip
        if row.path.endswith(("/search", "{hypervisor_id}/servers")):
            names["hypervisor_id"] = self.host
        if old and row.method == "PUT":
            names["service_id"] = "disable"
        return names

    def _body(self, row: Row, version: Version) -> Any:
        group = {"name": "g", "policy": "affinity"} if version >= (2, 64) else {"name": "g", "policies": ["affinity"]}
        boot = {"name": "new", "flavorRef": "1", "imageRef": self.image}
        by_name = {"host": self.host, "binary": "nova-compute"}
        return {
            "POST /servers": {"server": boot | ({"networks": "none"} if version >= (2, 37) else {})},
            "PUT /servers/{server_id}": {"server": {"name": "b"}},
            "POST /servers/{server_id}/action": {"lock": None},
            "POST /servers/{server_id}/metadata": {"metadata": {"a": "b"}},
            "PUT /servers/{server_id}/metadata": {"metadata": {"a": "b"}},
            "PUT /servers/{server_id}/metadata/{key}": {"meta": {"a": "b"}},
            "PUT /servers/{server_id}/tags": {"tags": ["t"]},
            "POST /servers/{server_id}/migrations/{migration_id}/action": {"force_complete": None},
            "POST /os-server-external-events": {"events": [{"name": "network-changed", "server_uuid": self.server_id}]},
            "PUT /os-services/{service_id}": by_name if version < (2, 53) else {"status": "disabled"},
            "POST /os-aggregates": {"aggregate": {"name": uuid4().hex}},
            "PUT /os-aggregates/{aggregate_id}": {"aggregate": {"availability_zone": "west"}},
            "POST /os-aggregates/{aggregate_id}/action": {"set_metadata": {"metadata": {"availability_zone": "w"}}},
            "POST /os-server-groups": {"server_group": group},
            "PUT /os-quota-sets/{project_id}": {"quota_set": {"cores": 5000}},
        }.get(f"{row.method} {row.path}")

    def wrong(self, told: str, answer: Any) -> str:
        """What of an answer is not as it is told; "" when all is."""
        if str(answer.status_code) != told[:3]:
            return f"is {answer.status_code} {answer.content[:200]!r}"
        shown = answer.content.decode()
        is_there = any(name in shown for name in (self.server_id, self.host, self.zone))
        if "skipped" in told and is_there:
            return "shows what is in the cell"
        if "UNKNOWN" in told and not (is_there and '"UNKNOWN"' in shown):
            return "does not show what is UNKNOWN"
        kept = (late.objects.filter(server_id=self.server_id).exists() for late in (DeferredDelete, DeferredEvent))
        if "kept" in told and not any(kept):
            return "is not kept"
        if told == "503":
            fault = answer.json()["serviceUnavailable"]
            if self.cell.name not in fault["message"] or answer.headers["Retry-After"] != fault["retryAfter"]:
                return f"says only {fault}"
        return ""


@pytest.fixture(autouse=True)
def _no_quota_is_in_the_way(settings: Any) -> None:
    settings.QUOTA_DEFAULTS = dict.fromkeys(settings.QUOTA_DEFAULTS, -1)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a database that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as door:
        yield f"postgresql://u:p@127.0.0.1:{door.getsockname()[1]}/d"


@pytest.fixture
def down(request: pytest.FixtureRequest, cells: dict[str, Cell], cut_off: Any, tmp_path: Path, settings: Any) -> Any:
    """How to make a cell be down, in the way that is named."""
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 0.5, 3600
    empty = tmp_path / "empty.sqlite3"
    sqlite3.connect(empty).close()
    urls = {
        "refuses": "", "has a wrong URL": "gopher://nowhere", "has no tables": f"sqlite:///{empty}",
        "never answers": request.getfixturevalue("silent"),
    }  # fmt: skip
    return lambda cell, how: cut_off(cell, urls[how])


def test_every_request_is_in_the_table() -> None:
    listed = [(row.method, row.path) for row in table()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {key for key in VIEWS if not ON_THE_GLOBAL_SIDE.match(key[1])}


def test_the_answers_while_all_cells_are_up(cloud: Cloud) -> None:
    wrong = []
    for row in table():
        place = Place(cloud, cloud.cells["cell2"])
        found = place.wrong(row.up[:3], place.send(row, versions(row)[-1]))
        wrong += [f"{row.method} {row.path}: {found}"] if found else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "how"),
    [("cell2", "refuses"), ("cell2", "has a wrong URL"), ("cell2", "has no tables"), ("cell2", "never answers"),
     ("cell0", "refuses")],
)  # fmt: skip
def test_the_answers_while_a_cell_is_down(cloud: Cloud, down: Any, name: str, how: str) -> None:
    cell = cloud.cells[name]
    every = (name, how) == ("cell2", "refuses")
    wanted = [(row, version) for row in table() for version in versions(row)[None if every else -1 :]]
    shared = Place(cloud, cell)
    places = [Place(cloud, cell) if row.method == "DELETE" else shared for row, _ in wanted]
    down(cell, how)
    wrong = []
    for (row, version), place in zip(wanted, places, strict=True):
        if how != "never answers":  # each is the first to meet it; else it would be the deadline that is tested
            forget_outages()
        found = place.wrong(row.told(version), place.send(row, version))
        wrong += [f"{row.method} {row.path} at {text(version)}: {found}"] if found else []
    assert not wrong, "\n".join(wrong)


def test_no_action_reaches_a_server_of_a_cell_that_is_down(cells: dict[str, Cell], cut_off: Any) -> None:
    server_id = server(cells["cell2"])
    cut_off(cells["cell2"])
    keys = {action.key: action for action in registry.every().values() if action.key}
    assert BODIES.keys() <= keys.keys()
    for key, action in keys.items():
        for version in {max(action.since, MINIMUM), min(action.until, MAXIMUM)}:
            body = OLD_BODIES.get(key, BODIES.get(key)) if version < (2, 14) else BODIES.get(key)
            path = f"/servers/{server_id}/action"
            answer = client("admin").send("post", path, {key: body}, version=text(version))
            assert answer.status_code == 503, (key, version, answer.content)
            assert "Cell cell2 does not answer now" in answer.json()["serviceUnavailable"]["message"]
            assert answer.headers["Retry-After"]


def test_what_is_in_other_cells_is_as_ever(cloud: Cloud, down: Any) -> None:
    here = Place(cloud, cloud.cells["cell1"])
    asked = [row for row in table() if row.method == "GET"]
    before = {row: here.send(row, versions(row)[-1]).status_code for row in asked}
    down(cloud.cells["cell2"], "never answers")
    down(cloud.cells["cell0"], "refuses")
    for row, status in before.items():
        assert here.send(row, versions(row)[-1]).status_code == status, row
    assert here.wrong("200", here.send(Row("PUT", "/servers/{server_id}", "", "", ""), MAXIMUM)) == ""
    assert here.wrong("202", here.send(Row("POST", "/servers/{server_id}/action", "", "", ""), MAXIMUM)) == ""
