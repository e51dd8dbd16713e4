"""A cell that does not answer: its servers are UNKNOWN, everybody else's are as ever."""

from __future__ import annotations

import pytest
from django.db import connections

from cells.models import Cell, InstanceMapping
from tests.api.servers import BORN, FLAVOR, IMAGE, server, unplaced
from tests.conftest import OTHER_PROJECT, PROJECT


@pytest.fixture
def cut_off(cells):
    """From now on this cell's database does not answer."""

    def cut(cell):
        Cell.objects.filter(pk=cell.pk).update(database_url=f"sqlite:////nowhere/{cell.name}.sqlite3")

    known = {cell.alias: connections[cell.alias] for cell in cells.values()}
    yield cut
    for alias, connection in known.items():  # these very ones: the test run ends with them
        connections[alias].close()
        connections[alias], connections.databases[alias] = connection, connection.settings_dict


@pytest.fixture
def lost(cells, cut_off):
    """A server in a cell that has gone away."""
    server_id = server(cells["cell2"], "lost", age=1)
    cut_off(cells["cell2"])
    return server_id


def ids(answer):
    assert answer.status_code == 200, answer.content
    return [found["id"] for found in answer.json()["servers"]]


def test_before_269_a_down_cell_is_skipped(api, cells, lost):
    here = server(cells["cell1"], "here")
    for path in ("/servers", "/servers/detail"):
        assert ids(api.get(path, version="2.68")) == [here]


def test_since_269_its_servers_come_first_and_unknown(api, cells, lost):
    here, waiting = server(cells["cell1"], "here"), unplaced("waiting", age=2)
    server(cells["cell1"], project_id=OTHER_PROJECT)
    for path in ("/servers", "/servers/detail"):
        assert ids(api.get(path, version="2.69")) == [lost, here, waiting]
        assert ids(api.get(path, version="2.69")) == [lost, here, waiting]  # the breaker answers the same


def test_an_unknown_server_has_what_the_global_side_knows_and_no_more(api, lost):
    brief = api.get("/servers").json()["servers"][0]
    assert brief.keys() == {"id", "status", "links"}
    assert brief["status"] == "UNKNOWN"
    detail = api.get("/servers/detail").json()["servers"][0]
    assert detail.keys() == {"id", "status", "tenant_id", "created", "links"}
    assert detail["tenant_id"] == PROJECT
    assert detail["created"] == BORN.replace(minute=59, hour=11).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("version", "also"),
    [("2.69", set()), ("2.71", {"server_groups"}), ("2.96", {"server_groups"})],
)
def test_one_server_of_a_down_cell_is_shown_as_far_as_known(api, lost, version, also):
    answer = api.get(f"/servers/{lost}", version=version)
    assert answer.status_code == 200
    shown = answer.json()["server"]
    assert shown.keys() == also | {
        "id", "status", "tenant_id", "created", "links", "image", "flavor", "OS-EXT-AZ:availability_zone",
        "OS-EXT-STS:power_state", "user_id",
    }  # fmt: skip
    assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("UNKNOWN", 0)
    assert (shown["flavor"], shown["image"]["id"]) == (FLAVOR, IMAGE)
    assert (shown["user_id"], shown["OS-EXT-AZ:availability_zone"]) == ("someone", "UNKNOWN")


def test_one_server_of_a_down_cell_is_503_for_clients_before_269(api, lost):
    answer = api.get(f"/servers/{lost}", version="2.68")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]


@pytest.mark.parametrize("query", ["limit=10", "sort_key=uuid", "sort_dir=asc", "name=lost", "status=ACTIVE",
                                   "tags=a", "locked=true", "changes-since=2020-01-01T00:00:00Z"])  # fmt: skip
def test_with_filters_or_paging_a_down_cell_is_skipped(api, cells, lost, query):
    assert lost not in ids(api.get(f"/servers?{query}"))


def test_a_filter_that_is_dropped_for_a_member_does_not_hide_them(api, lost):
    assert ids(api.get("/servers?host=elsewhere")) == [lost]


def test_an_admin_sees_those_of_all_projects(admin, cells, cut_off):
    lost = {server(cells["cell2"]), server(cells["cell2"], project_id=OTHER_PROJECT)}
    server(cells["cell2"], deleted=True, vm_state="deleted")
    cut_off(cells["cell2"])
    assert set(ids(admin.get("/servers?all_tenants=1"))) == lost
    assert ids(admin.get("/servers")) == []


def test_cell0_may_be_down_too(api, cells, cut_off):
    failed, here = server(cells["cell0"], "failed"), server(cells["cell1"], "here")
    cut_off(cells["cell0"])
    assert ids(api.get("/servers")) == [failed, here]
    assert ids(api.get("/servers/detail")) == [failed, here]


def test_every_cell_may_be_down(api, cells, cut_off):
    lost = {server(cell, name) for name, cell in cells.items()}
    for cell in cells.values():
        cut_off(cell)
    assert set(ids(api.get("/servers"))) == lost
    assert ids(api.get("/servers", version="2.60")) == []


def test_a_marker_in_a_down_cell_is_503_and_not_a_lie(api, lost):
    answer = api.get(f"/servers?marker={lost}")
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("put", "", {"server": {"name": "b"}}),
        ("post", "/action", {"os-stop": None}),
        ("get", "/metadata", None),
        ("post", "/metadata", {"metadata": {"a": "b"}}),
        ("delete", "/metadata/a", None),
        ("get", "/tags", None),
        ("put", "/tags/a", None),
        ("get", "/ips", None),
        ("get", "/os-instance-actions", None),
        ("get", "/os-instance-actions/req-1", None),
    ],
)
def test_what_needs_the_cell_is_503_with_a_reason_and_a_time(api, lost, method, path, body):
    answer = api.send(method, f"/servers/{lost}{path}", body)
    assert answer.status_code == 503, answer.content
    fault = answer.json()["serviceUnavailable"]
    assert "Cell cell2 does not answer now" in fault["message"]
    assert answer.headers["Retry-After"] == fault["retryAfter"]


def test_a_server_that_was_to_be_deleted_is_not_shown_from_a_down_cell(api, cells, lost):
    InstanceMapping.objects.filter(pk=lost).update(queued_for_delete=True)
    assert ids(api.get("/servers")) == []
    assert api.get(f"/servers/{lost}").status_code == 404
