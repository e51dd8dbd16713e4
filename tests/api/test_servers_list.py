"""GET /servers and /servers/detail: one list over all cells."""

from __future__ import annotations

import gc
import itertools
import time
from datetime import timedelta

import pytest
from django.db.backends.utils import CursorWrapper
from django.utils import timezone
from hypothesis import HealthCheck, given, settings, strategies

from cells import cell_threads
from cells.context import target_cell
from compute.models import Service
from tests.api.servers import BORN, IMAGE, server, unplaced
from tests.conftest import OTHER_PROJECT

SORT_KEYS = (
    "created_at", "display_name", "display_description", "task_state", "launched_at", "terminated_at", "key_name",
    "vm_state", "host", "uuid", "power_state", "config_drive", "launch_index", "project_id", "locked",
)  # fmt: skip


def names(answer):
    assert answer.status_code == 200, answer.content
    return [server["name"] for server in answer.json()["servers"]]


def walk(api, query):
    """Follow the next links as they are; the ids in the order they came."""
    path, seen = f"/servers?{query}", []
    for _ in range(100):
        answer = api.get(path)
        assert answer.status_code == 200, answer.content
        seen += [found["id"] for found in answer.json()["servers"]]
        following = answer.json().get("servers_links")
        if not following:
            return seen
        assert following[0]["rel"] == "next"
        path = following[0]["href"].partition("/compute/v2.1")[2]
    raise AssertionError("pages without end")


@pytest.fixture
def crowd(cells):
    """Servers in every place, with ties and nulls in every column."""
    made = []
    for index in range(4):
        for cell in ("cell0", "cell1", "cell2"):
            made.append(
                server(
                    cells[cell],
                    f"s{index % 3}",
                    age=index % 2,
                    description=None if index % 2 else "d",
                    key_name="k" if index == 1 else None,
                    task_state="pausing" if index == 2 else None,
                    launch_index=index,
                    locked_by="owner" if index == 3 else "",
                    config_drive=index == 1,
                    terminated_at=BORN if index == 0 else None,
                )
            )
        made.append(unplaced(f"s{index % 2}", age=index % 2, key_name="k" if index else None))
    return made


def test_servers_of_all_cells_come_newest_first(api, cells):
    server(cells["cell1"], "third", age=3)
    server(cells["cell2"], "second", age=2)
    server(cells["cell0"], "fourth", age=4)
    unplaced("first", age=1)
    server(cells["cell2"], "fifth", age=5)
    assert names(api.get("/servers")) == ["first", "second", "third", "fourth", "fifth"]
    assert names(api.get("/servers/detail")) == ["first", "second", "third", "fourth", "fifth"]


def test_a_list_of_another_project_is_another_list(api, stranger, cells):
    server(cells["cell1"], "mine")
    server(cells["cell1"], "theirs", project_id=OTHER_PROJECT)
    unplaced("theirs too", project=OTHER_PROJECT, age=1)
    assert names(api.get("/servers")) == ["mine"]
    assert names(stranger.get("/servers")) == ["theirs", "theirs too"]


def test_a_server_in_two_places_for_a_moment_is_listed_once(api, cells):
    from cells.models import BuildRequest

    server_id = unplaced("moving")
    waiting = BuildRequest.objects.get(pk=server_id)
    from cells.models import InstanceMapping, RequestSpec

    InstanceMapping.objects.filter(pk=server_id).delete()
    RequestSpec.objects.filter(pk=server_id).delete()
    server(cells["cell1"], "moving", uuid=server_id, created_at=waiting.created_at)
    assert [found["id"] for found in api.get("/servers").json()["servers"]] == [server_id]
    assert api.get("/servers/detail").json()["servers"][0]["status"] == "ACTIVE"


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("key", SORT_KEYS)
def test_pages_walk_every_server_once_in_every_order(admin, crowd, key, direction):
    order = f"all_tenants=1&sort_key={key}&sort_dir={direction}"
    whole = walk(admin, order)
    assert sorted(whole) == sorted(crowd)
    assert walk(admin, f"{order}&limit=3") == whole


@given(
    keys=strategies.lists(strategies.sampled_from(SORT_KEYS), min_size=1, max_size=4),
    directions=strategies.lists(strategies.sampled_from(["asc", "desc"]), max_size=4),
    limit=strategies.integers(1, 9),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_walk_every_server_once_in_mixed_orders(admin, crowd, keys, directions, limit):
    order = "&".join(["all_tenants=1", *(f"sort_key={k}" for k in keys), *(f"sort_dir={d}" for d in directions)])
    whole = walk(admin, order)
    assert sorted(whole) == sorted(crowd)
    assert walk(admin, f"{order}&limit={limit}") == whole


def test_paging_through_servers_no_cell_has_yet_loses_none(api, cells):
    waiting = [unplaced(f"u{index}", age=index) for index in range(5)]
    placed = [server(cells["cell1"], f"p{index}", age=10 + index) for index in range(3)]
    assert walk(api, "limit=2") == waiting + placed


def test_a_marker_that_got_its_cell_between_two_pages_still_works(api, cells):
    first, second = unplaced("a", age=1), unplaced("b", age=2)
    from cells.models import BuildRequest, InstanceMapping, RequestSpec

    for model in (BuildRequest, InstanceMapping, RequestSpec):
        model.objects.filter(pk=first).delete()
    server(cells["cell2"], "a", age=1, uuid=first)
    assert [s["id"] for s in api.get(f"/servers?limit=1&marker={first}").json()["servers"]] == [second]


def test_text_is_sorted_the_same_in_every_cell(admin, cells):
    for index, name in enumerate(["b", "B", "a", "A", "ä", "_", "-x", "Z", "z"]):
        server(cells["cell1" if index % 2 else "cell2"], name)
    order = "all_tenants=1&sort_key=display_name&sort_dir=asc"
    assert names(admin.get(f"/servers?{order}")) == sorted(["b", "B", "a", "A", "ä", "_", "-x", "Z", "z"])
    assert len(walk(admin, f"{order}&limit=2")) == 9


@pytest.mark.parametrize("key", ["key_name", "display_description"])
def test_a_server_no_cell_has_yet_is_sorted_with_those_that_have_no_key_either(api, cells, key):
    column = {"key_name": "key_name", "display_description": "description"}[key]
    named = server(cells["cell1"], "a", **{column: "m"})
    without = [server(cells["cell1"], "b"), unplaced("c", key_name=None)]
    order = f"sort_key={key}&sort_dir=asc"
    assert walk(api, order) == [*sorted(without), named]
    assert walk(api, f"{order}&limit=1") == [*sorted(without), named]


def test_the_next_link_repeats_the_query_sorted_and_ends_with_the_marker(api, cells):
    newest = server(cells["cell1"], "a")
    server(cells["cell1"], "a", age=1)
    link = api.get("/servers/detail?sort_key=created_at&name=a&limit=1").json()["servers_links"][0]
    assert link["href"].endswith(f"/compute/v2.1/servers/detail?limit=1&name=a&sort_key=created_at&marker={newest}")
    assert "servers_links" not in api.get("/servers?limit=3").json()


def test_limit_0_is_an_empty_list(api, cells):
    server(cells["cell1"])
    assert api.get("/servers?limit=0").json() == {"servers": []}


@pytest.mark.parametrize("limit", ["-1", "x", "", "1.5", "٣"])
def test_a_limit_that_is_no_number_is_refused(api, limit):
    answer = api.get("/servers", {"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["badRequest"]["message"].startswith("Invalid input for query parameters limit. Value:")


@pytest.mark.parametrize("limit", ["5", "1001", "9" * 5000])
def test_a_limit_beyond_the_most_is_the_most(api, cells, settings, limit):
    settings.MAX_LIMIT = 2
    for age in range(3):
        server(cells["cell1"], age=age)
    answer = api.get("/servers", {"limit": limit}).json()
    assert len(answer["servers"]) == 2
    assert "servers_links" in answer


@pytest.mark.parametrize("marker", ["nobody", "11111111-1111-4111-8111-111111111111", "a" * 3000])
def test_an_unknown_marker_is_refused(api, marker):
    answer = api.get(f"/servers?marker={marker}")
    assert answer.status_code == 400
    assert answer.json()["badRequest"]["message"] == f"marker [{marker}] not found"


def test_another_projects_server_is_no_marker(api, admin, cells):
    theirs = server(cells["cell1"], project_id=OTHER_PROJECT)
    assert api.get(f"/servers?marker={theirs}").status_code == 400
    assert admin.get(f"/servers?all_tenants=1&marker={theirs}").status_code == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [("sort_key=shoe_size", 400), ("sort_key=uuid&sort_dir=up", 400), ("sort_key=host", 403), ("sort_key=node", 403)],
)
def test_an_order_that_does_not_exist_is_refused(api, query, status):
    assert api.get(f"/servers?{query}").status_code == status


def test_the_page_after_the_last_server_is_empty(api, cells):
    last = server(cells["cell1"])
    assert api.get(f"/servers?marker={last}").json() == {"servers": []}


def test_an_image_link_is_shown_in_detail_only(api, cells):
    server_id = server(cells["cell1"])
    assert api.get("/servers").json()["servers"][0].keys() == {"id", "name", "links"}
    detail = api.get("/servers/detail").json()["servers"][0]
    assert (detail["id"], detail["image"]["id"]) == (server_id, IMAGE)
    assert detail["created"] == (BORN.replace(microsecond=0)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert detail["OS-SRV-USG:launched_at"] == "2026-01-01T12:00:00.250000"


def test_a_reader_may_list(reader, cells):
    server(cells["cell1"], "a", created_at=BORN - timedelta(days=1))
    assert names(reader.get("/servers")) == ["a"]


def test_a_cell_that_lets_all_wait_changes_no_word(admin, cells, monkeypatch):
    """Meanwhile the others' servers are made ready to be shown, those that are not on the page in the end, too."""
    for index in range(40):
        server(cells["cell1" if index % 2 else "cell2"], f"s{index}", age=index % 7, host=f"host{index % 3}")
    for name, host in itertools.product(("cell1", "cell2"), ("host0", "host1")):
        with target_cell(cells[name]):
            Service.objects.create(binary="nova-compute", host=host, last_seen_up=timezone.now())
    paths = [f"{path}?all_tenants=1&limit={limit}" for path in ("/servers", "/servers/detail") for limit in (5, 30)]
    before, run = [admin.get(path).json() for path in paths], CursorWrapper.execute
    assert {found["host_status"] for found in before[-1]["servers"]} == {"UP", "UNKNOWN"}

    def slow(self, *query):
        if self.db.alias == cells["cell2"].alias:
            time.sleep(3 * cell_threads.QUIET)
        return run(self, *query)

    monkeypatch.setattr(CursorWrapper, "execute", slow)
    assert [admin.get(path).json() for path in paths] == before


@pytest.mark.parametrize("path", ["/servers", "/servers/detail"])
def test_a_long_list_leaves_no_more_to_the_garbage_collector_than_a_short_one(api, cloud, path):
    """Seen in bench: while it was looked for, some lists of a thousand servers stood still for 50 to 240 ms."""

    def garbage() -> int:
        gc.collect()
        gc.disable()
        try:
            answer = api.send("get", path)
            answer.json = None  # Django's test client has the answer hold itself
            del answer
            return gc.collect()
        finally:
            gc.enable()

    cloud.boot(api, "a")
    garbage()
    alone = garbage()
    for _ in range(5):
        cloud.boot(api, "b")
    assert garbage() == alone
