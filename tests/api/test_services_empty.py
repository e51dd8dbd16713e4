"""Emptying a host through the API: asking for it, and what is refused."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.models import DrainMigration
from tests.api.test_services import listed, message, stored
from tests.api.test_services_drain import KEY, fleet, put
from tests.cells import rows

__all__ = ("fleet",)


@pytest.fixture
def servers(cells, fleet):
    """Two of them on h1."""
    made = [rows.server(cells["cell1"], host="h1", node="h1", vm_state="active") for _ in range(2)]
    return [server.uuid for server in made]


def test_the_list_is_in_every_record_until_the_host_takes_work(admin, fleet, cells, servers):
    shown = put(admin, fleet["h1"], {"migrate": {"parallel": 3}, "timeout": 600}).json()["service"]
    assert shown["disabled_reason"].startswith("emptying since ")
    moves = shown[KEY]["migrate"]
    assert moves == {"parallel": 3, "total": 2, "away": 0, "moving": [], "blocked": 0, "blockers": []}
    with target_cell(cells["cell1"]):
        DrainMigration.objects.filter(server_id=servers[0]).update(state="blocked", why="it is suspended: resume it")
        DrainMigration.objects.filter(server_id=servers[1]).update(state="away", moved_to="h3")
    moves = listed(admin.get("/os-services"))["h1"][KEY]["migrate"]
    assert (moves["away"], moves["blocked"]) == (1, 1)
    assert moves["blockers"] == [{"server": servers[0], "why": "it is suspended: resume it"}]

    returning = put(admin, fleet["h1"], {"return": {}}).json()["service"]
    assert (returning[KEY]["state"], returning[KEY]["return"]["parallel"]) == ("returning", 4)
    assert returning["disabled_reason"] is None
    assert KEY not in put(admin, fleet["h1"], None).json()["service"]
    assert stored(cells["cell1"], "h1").drain_moves == 0


@pytest.mark.parametrize("host", ["c1", "s1"])
@pytest.mark.parametrize("wanted", [{"migrate": {}}, {"return": {}}])
def test_who_has_no_servers_is_told_so(admin, fleet, cells, host, wanted):
    refused = message(put(admin, fleet[host], wanted), 400)
    assert refused == f"Service {fleet[host].binary}@{host} has no servers that could move."
    assert not stored(cells["cell1" if host == "c1" else "cell0"], host).drain_state


@pytest.mark.parametrize(
    "wanted",
    [{"migrate": {"parallel": 0}}, {"migrate": {"parallel": 1001}}, {"migrate": {"at": 1}}, {"migrate": 4},
     {"return": {}, "reason": "x"}, {"return": None}],
)  # fmt: skip
def test_a_wrong_drain_request_changes_nothing(admin, fleet, cells, servers, wanted):
    assert put(admin, fleet["h1"], wanted).status_code == 400
    assert not stored(cells["cell1"], "h1").drain_state


def test_a_service_that_is_forgotten_leaves_no_list(admin, fleet, cells):
    with target_cell(cells["cell1"]):
        DrainMigration.objects.create(server_id="s", host="h1", state="away", moved_to="h3")
    assert admin.delete(f"/os-services/{fleet['h1'].uuid}").status_code == 204
    with target_cell(cells["cell1"]):
        assert not DrainMigration.objects.exists()


def test_ten_hosts_with_nothing_to_move_cost_no_more(admin, fleet, cells, queries):
    few = queries(lambda: listed(admin.get("/os-services")))
    with target_cell(cells["cell1"]):
        DrainMigration.objects.create(server_id="s", host="h1", state="away", moved_to="h3")
    assert queries(lambda: listed(admin.get("/os-services"))) == few
