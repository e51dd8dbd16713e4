"""A cell that does not answer: its servers are UNKNOWN, everybody else's are as ever."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError
from django.db.backends.utils import CursorWrapper

from cells.models import HostMapping, InstanceMapping, RequestSpec
from tests.api.servers import BORN, FLAVOR, IMAGE, server, unplaced
from tests.conftest import OTHER_PROJECT, PROJECT, client


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


def links_of(server_id):
    root = "http://127.0.0.1:8774/compute"
    return [
        {"rel": "self", "href": f"{root}/v2.1/servers/{server_id}"},
        {"rel": "bookmark", "href": f"{root}/servers/{server_id}"},
    ]


SINCE_269 = [f"2.{minor}" for minor in range(69, 97)]
BEFORE_269 = [f"2.{minor}" for minor in (1, 2, 3, 8, 9, 15, 16, 18, 19, 25, 26, 46, 47, 62, 63, 68)]  # where keys come
CREATED = BORN.replace(minute=59, hour=11).strftime("%Y-%m-%dT%H:%M:%SZ")
UNKNOWN = {"status": "UNKNOWN"}
DETAIL = UNKNOWN | {"tenant_id": PROJECT, "created": CREATED}
SHOW = DETAIL | {
    "user_id": "someone",
    "image": {
        "id": IMAGE, "links": [{"rel": "bookmark", "href": f"http://127.0.0.1:8774/compute/images/{IMAGE}"}],
    },
    "flavor": FLAVOR,
    "OS-EXT-AZ:availability_zone": "UNKNOWN",
    "OS-EXT-STS:power_state": 0,
}  # fmt: skip


def test_lists_are_the_spec_to_the_letter(api, lost):
    own = {"id": lost, "links": links_of(lost)}
    for version in ("2.69", "2.75", "2.96"):
        assert api.get("/servers", version=version).json() == {"servers": [own | UNKNOWN]}
        assert api.get("/servers/detail", version=version).json() == {"servers": [own | DETAIL]}


def test_a_shown_server_is_the_spec_to_the_letter(api, lost):
    own = {"id": lost, "links": links_of(lost)}
    for version in SINCE_269:
        also = {"server_groups": []} if version >= "2.71" else {}
        assert api.get(f"/servers/{lost}", version=version).json() == {"server": own | SHOW | also}


def test_what_was_asked_for_is_shown_of_an_unknown_server(api, lost):
    RequestSpec.objects.filter(pk=lost).update(availability_zone="east", image_id="")
    InstanceMapping.objects.filter(pk=lost).update(user_id="")
    shown = api.get(f"/servers/{lost}").json()["server"]
    assert (shown["OS-EXT-AZ:availability_zone"], shown["image"], shown["user_id"]) == ("east", "", "UNKNOWN")
    RequestSpec.objects.all().delete()
    shown = api.get(f"/servers/{lost}").json()["server"]
    assert (shown["OS-EXT-AZ:availability_zone"], shown["image"], shown["flavor"]) == ("UNKNOWN", "", {})


def test_services_of_a_down_cell_are_the_spec_to_the_letter(admin, cells, cut_off):
    HostMapping.objects.create(host="host2", cell=cells["cell2"])
    cut_off(cells["cell2"])
    unknown = {"services": [{"binary": "nova-compute", "host": "host2", "status": "UNKNOWN"}]}
    for version in ("2.69", "2.96"):
        assert admin.get("/os-services", version=version).json() == unknown
        assert admin.get("/os-services?host=host2&binary=nova-compute", version=version).json() == unknown
    assert admin.get("/os-services?binary=nova-conductor").json() == {"services": []}
    assert admin.get("/os-services", version="2.68").json() == {"services": []}
    cut_off(cells["cell0"])
    assert admin.get("/os-services").json() == unknown


@pytest.mark.parametrize("who", ["api", "admin"])
def test_before_269_an_unknown_server_has_every_key_its_clients_count_on(who, request, cells, lost):
    client, here = request.getfixturevalue(who), server(cells["cell1"], "here")
    for version in BEFORE_269:
        known = client.get(f"/servers/{here}", version=version).json()["server"]
        unknown = client.get(f"/servers/{lost}", version=version).json()["server"]
        assert unknown.keys() == known.keys() - {"progress"}, version
        assert (unknown["id"], unknown["status"], unknown["tenant_id"]) == (lost, "UNKNOWN", PROJECT)
        assert (unknown["OS-EXT-STS:vm_state"], unknown["OS-EXT-STS:power_state"]) == (None, 0)
        assert (unknown["created"], unknown["name"], unknown["hostId"]) == (CREATED, "", "")
        assert (unknown["image"], unknown["flavor"]) == (known["image"], known["flavor"])
        assert {type(unknown[key]) for key in ("name", "metadata", "addresses")} == {str, dict}


def test_what_clients_may_ask_with_is_no_reason_to_leave_them_out(admin, cells, cut_off):
    """`openstack server list` says `deleted=False`; both are known without the cell (spec 3, Filters)."""
    mine, theirs = server(cells["cell2"]), server(cells["cell2"], project_id=OTHER_PROJECT)
    cut_off(cells["cell2"])
    assert set(ids(admin.get("/servers/detail?all_tenants=True&deleted=False"))) == {mine, theirs}
    assert ids(admin.get(f"/servers/detail?all_tenants=True&project_id={OTHER_PROJECT}")) == [theirs]
    assert ids(admin.get("/servers/detail?all_tenants=True&deleted=True")) == []


def test_lists_that_have_to_be_whole_are_503(api, stranger, admin, cells, lost, settings):
    here = server(cells["cell1"], "here", project_id=OTHER_PROJECT)
    settings.LIST_RECORDS_BY_SKIPPING_DOWN_CELLS = False
    for query, version in (("", "2.68"), ("/detail", "2.1"), ("?limit=5", "2.96"), ("/detail?name=x", "2.69")):
        answer = api.get(f"/servers{query}", version=version)
        assert answer.status_code == 503
        assert "Cell cell2 does not answer now, so this list" in answer.json()["serviceUnavailable"]["message"]
        assert answer.headers["Retry-After"]
        assert ids(stranger.get(f"/servers{query}", version=version)) in ([here], [])  # nothing of theirs is left out
        assert admin.get(f"/servers{query}{'&' if '?' in query else '?'}all_tenants=1").status_code == (
            503 if "?" in query else 200
        )
    assert ids(api.get("/servers", version="2.69")) == [lost]


def test_a_list_of_migrations_that_has_to_be_whole_is_503(admin, cells, lost, settings):
    assert admin.get("/os-migrations").json() == {"migrations": []}
    settings.LIST_RECORDS_BY_SKIPPING_DOWN_CELLS = False
    for version in ("2.58", "2.59", "2.96"):
        assert admin.get("/os-migrations", version=version).status_code == 503
    InstanceMapping.objects.all().delete()
    assert admin.get("/os-migrations").status_code == 200


def test_a_connection_that_broke_since_its_last_use_is_no_failure_of_the_cell(api, cells, monkeypatch):
    """The server of the database was restarted: the cell is asked again over another connection."""
    here, run, broken = server(cells["cell1"]), CursorWrapper.execute, []
    assert api.get(f"/servers/{here}").json()["server"]["status"] == "ACTIVE"

    def gone(self, *query):
        if self.db.alias == cells["cell1"].alias and threading.current_thread() is threading.main_thread():
            broken.append(query)
            raise OperationalError("server closed the connection unexpectedly")
        return run(self, *query)

    monkeypatch.setattr(CursorWrapper, "execute", gone)
    assert api.get(f"/servers/{here}").json()["server"]["status"] == "ACTIVE"
    assert len(broken) == 1


def test_a_cell_that_goes_away_in_the_middle_of_a_list_is_filled_up_from_the_others(admin, cells, monkeypatch):
    """It gave the beginning of the page, and not what follows: a page that is not short, and nothing twice."""
    for age in range(60):
        server(cells["cell1"], f"a{age}")
    there, run, asked = [server(cells["cell2"], f"b{age:02}") for age in range(60)], CursorWrapper.execute, []

    def gone(self, *query):
        if self.db.alias == cells["cell1"].alias and "compute_instance" in query[0]:
            asked.append(query[0])
            if len(asked) > 1:
                raise OperationalError("server closed the connection unexpectedly")
        return run(self, *query)

    monkeypatch.setattr(CursorWrapper, "execute", gone)
    assert ids(admin.get("/servers?all_tenants=1&limit=50&sort_key=display_name&sort_dir=asc")) == there[:50]
    assert len(asked) > 1


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


def test_an_admin_without_a_project_has_no_servers_and_sees_all_projects_when_asked(cells, lost):
    here = server(cells["cell1"])
    projectless = client("admin", project="")
    for path in ("/servers", "/servers/detail", "/servers?limit=5", "/servers?name=a", "/servers?sort_key=uuid"):
        assert ids(projectless.get(path)) == [], path
    assert set(ids(projectless.get("/servers?all_tenants=1"))) == {here, lost}
