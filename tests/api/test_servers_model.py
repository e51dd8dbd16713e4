"""Lists of servers against a list in memory: any servers, any cells down, any filters, orders and pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import BuildRequest, Cell, InstanceMapping
from compute.models import Instance
from compute.servers import listing
from tests.api.servers import BORN, FLAVOR, IMAGE
from tests.conftest import OTHER_PROJECT, PROJECT, client

CELLS = ("cell0", "cell1", "cell2")
NO_CELL = ""
STATUSES = {"active": "ACTIVE", "stopped": "SHUTOFF", "error": "ERROR", "building": "BUILD"}
COLUMNS = {  # what sorts by them -> what it is called here
    "created_at": "born", "updated_at": "changed", "display_name": "name", "task_state": "task_state",
    "vm_state": "vm_state", "key_name": "key_name", "launch_index": "launch_index", "launched_at": "launched",
    "project_id": "project", "uuid": "uuid", "host": "host",
}  # fmt: skip
NULLABLE = {"task_state", "key_name", "launched"}


@dataclass(frozen=True)
class Server:
    """What a list may look at. Times are minutes after BORN; `cell` "": no cell has it yet."""

    uuid: str
    cell: str
    project: str
    name: str
    born: int
    changed: int
    launched: int | None
    vm_state: str
    task_state: str | None
    key_name: str | None
    launch_index: int
    host: str
    tags: str
    deleted: bool
    queued: bool | None  # what the global side knows of its delete; None: it is older than that

    @property
    def is_ended(self) -> bool:
        return self.deleted or self.vm_state == "soft-delete"


@dataclass(frozen=True)
class Ask:
    """A request, without its marker."""

    version: tuple[int, int]
    admin: bool
    everybody: bool
    project: str  # an admin's filter
    filters: dict[str, str]
    sort: list[tuple[str, str]]
    limit: int | None

    @property
    def of(self) -> str:
        """Whose servers; "": everybody's."""
        if self.everybody:
            return self.project
        return PROJECT

    @property
    def means(self) -> dict[str, str]:
        """The filters that count for this caller and version, and hide what is not known."""
        return {
            name: value for name, value in self.filters.items()
            if (self.admin or name not in ("host", "deleted"))
            and (name != "tags" or self.version >= (2, 26))
            and (name, value) != ("deleted", "False")
        }  # fmt: skip

    @property
    def query(self) -> list[tuple[str, Any]]:
        words = list(self.filters.items()) + [("all_tenants", "1")] * self.everybody
        words += [("project_id", self.project)] if self.project and self.everybody else []
        words += [("sort_key", key) for key, _ in self.sort] + [("sort_dir", way) for _, way in self.sort]
        return words + ([] if self.limit is None else [("limit", self.limit)])


@dataclass
class Model:
    """The servers there are, and what a list of them has to be."""

    servers: list[Server]
    down: set[str] = field(default_factory=set)

    def page(self, ask: Ask, marker: str) -> tuple[int, list[str], list[str]]:
        """Status, UNKNOWN servers, the others."""
        found = [s for s in self.servers if s.cell not in self.down and self._wanted(s, ask)]
        found = self._sorted(found, ask)
        if marker and ask.limit != 0:
            place = next((s for s in self.servers if s.uuid == marker and (ask.everybody or s.project == ask.of)), None)
            if place is None:
                return 400, [], []
            if place.cell in self.down:
                return 503, [], []
            both = self._sorted([*(s for s in found if s is not place), place], ask)
            found = both[both.index(place) + 1 :]
        unknown = []
        if ask.version >= (2, 69) and not (ask.means or ask.sort or ask.limit is not None or marker):
            unknown = [s for s in self.servers if s.cell in self.down and not s.queued and ask.of in ("", s.project)]
            unknown.sort(key=lambda s: (-s.born, s.uuid))
        return 200, [s.uuid for s in unknown], [s.uuid for s in found[: ask.limit]]

    def _wanted(self, server: Server, ask: Ask) -> bool:
        means = ask.means
        if "changes-since" not in means and server.is_ended != (means.get("deleted") == "True"):
            return False
        return ask.of in ("", server.project) and all(self._passes(server, *one) for one in means.items())

    def _passes(self, server: Server, name: str, value: str) -> bool:
        match name:
            case "name":
                return value in server.name
            case "status":
                return STATUSES.get(server.vm_state) == value
            case "host":
                return server.host == value
            case "tags":
                return f",{value}," in server.tags
            case "changes-since":
                return moment(server.changed).strftime("%Y-%m-%dT%H:%M:%SZ") >= value
        return True

    def _sorted(self, found: list[Server], ask: Ask) -> list[Server]:
        """By the last key first, as sorts are stable; nulls are lowest."""
        for key, way in reversed([*(ask.sort or [("created_at", "desc")]), ("uuid", "asc")]):
            name = COLUMNS[key]
            found = sorted(found, key=lambda s: (getattr(s, name) is not None, getattr(s, name)) if name in NULLABLE
                           else getattr(s, name), reverse=way == "desc")  # fmt: skip
        return found


def moment(minutes: int) -> Any:
    return BORN.replace(microsecond=0) + timedelta(minutes=minutes)


@st.composite
def a_server(draw: Any) -> Server:
    cell = draw(st.sampled_from((*CELLS, NO_CELL)))
    born, is_waiting = draw(st.integers(0, 3)), cell == NO_CELL
    states = {NO_CELL: ["building"], "cell0": ["error"]}.get(cell, [*STATUSES, "soft-delete"])
    deleted = not is_waiting and draw(st.sampled_from((False, False, False, True)))
    vm_state = "deleted" if deleted else draw(st.sampled_from(states))
    return Server(
        uuid=str(UUID(int=draw(st.integers(0, 2**128 - 1)), version=4)),
        cell=cell, project=draw(st.sampled_from((PROJECT, PROJECT, PROJECT, OTHER_PROJECT))),
        name=draw(st.sampled_from(("a", "B", "b-1", "ä", "_"))),
        born=born, changed=born if is_waiting else born + draw(st.integers(0, 3)),
        launched=born if vm_state == "active" else None, vm_state=vm_state,
        task_state="scheduling" if is_waiting else draw(st.sampled_from((None, None, "pausing"))),
        key_name=draw(st.sampled_from((None, "k", "K"))),
        launch_index=draw(st.integers(0, 1)),
        host="" if is_waiting or cell == "cell0" else draw(st.sampled_from(("h1", "h2"))),
        tags=draw(st.sampled_from(("", ",x,", ",x,y,"))),
        deleted=deleted, queued=True if deleted else draw(st.sampled_from((False, False, None, True))),
    )  # fmt: skip


@st.composite
def an_ask(draw: Any) -> Ask:
    admin = draw(st.booleans())
    everybody = admin and draw(st.booleans())
    version = draw(st.sampled_from(((2, 1), (2, 68), (2, 69), (2, 96))))
    project = draw(st.sampled_from(("", PROJECT))) if everybody else ""
    if draw(st.booleans()):
        return Ask(version, admin, everybody, project, draw(st.sampled_from(({}, {"deleted": "False"}))), [], None)
    filters = draw(st.one_of(st.just({}), st.fixed_dictionaries({}, optional={
        "name": st.sampled_from(("a", "b")), "status": st.sampled_from(list(STATUSES.values())),
        "host": st.just("h1"), "tags": st.sampled_from(("x", "y")), "deleted": st.sampled_from(("True", "False")),
        "changes-since": st.integers(0, 4).map(lambda m: moment(m).strftime("%Y-%m-%dT%H:%M:%SZ")),
    })))  # fmt: skip
    if filters.get("deleted") and "changes-since" in filters:
        del filters["deleted"]
    keys = [key for key in COLUMNS if admin or key != "host"]
    order = st.lists(st.sampled_from(keys), min_size=1, max_size=3, unique=True)
    sort = [(key, draw(st.sampled_from(("asc", "desc")))) for key in draw(st.one_of(st.just([]), order))]
    limit = draw(st.sampled_from((None, 0, 1, 2, 3, 4, 8)))
    return Ask(version, admin, everybody, project, filters, sort, limit)


def write(cells: dict[str, Cell], servers: list[Server]) -> None:
    """The databases have these servers and no others."""
    for model in (BuildRequest, InstanceMapping):
        model.objects.all().delete()
    InstanceMapping.objects.bulk_create(
        InstanceMapping(
            server_id=s.uuid, cell=cells.get(s.cell), project_id=s.project, user_id="u", queued_for_delete=s.queued,
            created_at=moment(s.born), is_deleted=s.deleted and bool(s.launch_index),  # it is set some time later
        ) for s in servers
    )  # fmt: skip
    for name in CELLS:
        with target_cell(cells[name]):
            Instance.objects.all().delete()
            Instance.objects.bulk_create(Instance(**_columns(s)) for s in servers if s.cell == name)
    BuildRequest.objects.bulk_create(
        BuildRequest(server_id=s.uuid, project_id=s.project, user_id="u", request_id="r", created_at=moment(s.born),
                     instance=_columns(s) | {"created_at": moment(s.born).isoformat()})
        for s in servers if s.cell == NO_CELL
    )  # fmt: skip


def _columns(s: Server) -> dict[str, Any]:
    common = {
        "uuid": s.uuid, "project_id": s.project, "user_id": "u", "display_name": s.name, "hostname": "h", "vcpus": 1,
        "memory_mb": 1, "disk_gb": 1, "flavor_id": "1", "flavor": FLAVOR, "image_id": IMAGE, "tags": s.tags,
        "key_name": s.key_name, "launch_index": s.launch_index, "created_at": moment(s.born),
    }  # fmt: skip
    if s.cell == NO_CELL:
        return common
    return common | {
        "host": s.host, "node": s.host, "vm_state": s.vm_state, "task_state": s.task_state, "deleted": s.deleted,
        "updated_at": moment(s.changed), "launched_at": None if s.launched is None else moment(s.launched),
    }  # fmt: skip


def bring_down(cells: dict[str, Cell], names: set[str]) -> None:
    for name in CELLS:
        circuit_breaker.record_recovery(cells[name].id)
        if name in names:
            circuit_breaker.record_failure(cells[name].id, "cut off")


@pytest.fixture
def still(settings: Any) -> None:
    """A cell that is down stays so: nobody looks."""
    settings.CELL_RETRY_INTERVAL = 36000


@pytest.fixture
def sparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are asked for so little at a time that they are often asked again."""
    monkeypatch.setattr(listing, "MARGIN", 1)


@given(
    servers=st.lists(a_server(), min_size=4, max_size=14, unique_by=lambda s: s.uuid),
    ask=an_ask(),
    first=st.one_of(st.none(), st.none(), st.integers(0, 13)),
    downs=st.lists(st.sets(st.sampled_from(CELLS)), min_size=1, max_size=4),
    detail=st.booleans(),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lists_are_those_of_one_list_whatever_is_down(
    cells: dict[str, Cell], still: None, sparing: None, servers: list[Server], ask: Ask, first: int | None,
    downs: list[set[str]], detail: bool,
) -> None:  # fmt: skip
    """Page after page, each while other cells are down, from the beginning or from any server as a marker."""
    write(cells, servers)
    model = Model(servers)
    api = client("admin" if ask.admin else "member")
    marker = "" if first is None else servers[first % len(servers)].uuid
    for model.down in downs:
        bring_down(cells, model.down)
        path = "/servers/detail" if detail else "/servers"
        query = urlencode([*ask.query, *([("marker", marker)] if marker else [])])
        answer = api.get(f"{path}?{query}", version="{}.{}".format(*ask.version))
        status, unknown, page = model.page(ask, marker)
        event(f"{status}, {'some' if unknown else 'none'} UNKNOWN, {'some' if page else 'none'} in the page")
        assert answer.status_code == status, answer.content
        if status != 200:
            return
        shown = answer.json()
        assert [found["id"] for found in shown["servers"]] == [*unknown, *page]
        assert [found.get("status") for found in shown["servers"]][: len(unknown)] == ["UNKNOWN"] * len(unknown)
        more = bool(page) and len(page) == ask.limit
        assert ("servers_links" in shown) == more
        if not more:
            return
        marker = page[-1]
        assert f"marker={marker}" in shown["servers_links"][0]["href"]
