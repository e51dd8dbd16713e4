"""What a list costs: as many queries per cell however many servers, and never more rows at once than the page has."""

from __future__ import annotations

import pytest

from cells import circuit_breaker
from cells.models import InstanceMapping
from tests.api.queries import counted
from tests.api.servers import server, unplaced
from tests.conftest import OTHER_PROJECT


def cost(client, path):
    with counted() as seen:
        answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return {alias: len(queries) for alias, queries in seen.items()}, len(answer.json()["servers"])


@pytest.mark.parametrize("path", ["/servers?all_tenants=1", "/servers/detail?all_tenants=1"])
def test_200_servers_cost_as_many_queries_as_10(admin, cells, path):
    def fill(count):
        for index in range(count):
            server(cells["cell1" if index % 2 else "cell2"], age=index, host=f"host{index % 7}")
        server(cells["cell0"])
        unplaced()

    fill(8)
    few, shown = cost(admin, path)
    assert shown == 10
    fill(188)
    many, shown = cost(admin, path)
    assert shown == 200
    assert many == few
    assert max(count for alias, count in many.items() if alias != "default") <= 3


CELLS = ("cell0", "cell1", "cell2")


def asked(client, cells, query):
    """The ids of a page, and the queries to each cell."""
    with counted() as seen:
        answer = client.get(f"/servers?{query}")
    queries = {name: len(seen.get(cells[name].alias, ())) for name in CELLS}
    return [found["id"] for found in answer.json()["servers"]], queries


def test_a_page_of_one_cells_servers_asks_only_that_cell(admin, cells):
    made = [server(cells["cell1"], age=age) for age in range(100)] + [server(cells["cell2"], age=200)]
    assert asked(admin, cells, "all_tenants=1&limit=90") == (made[:90], {"cell0": 0, "cell1": 1, "cell2": 0})
    assert asked(admin, cells, f"all_tenants=1&limit=9&marker={made[90]}") == (
        made[91:100], {"cell0": 0, "cell1": 2, "cell2": 0},  # one for the marker
    )  # fmt: skip
    page = made[91:]
    assert asked(admin, cells, f"all_tenants=1&limit=90&marker={made[90]}") == (
        page, {"cell0": 0, "cell1": 2, "cell2": 1},
    )  # fmt: skip


def test_in_another_order_the_cell_whose_rows_fill_the_page_is_asked_again(admin, cells):
    made = [server(cells["cell1"], f"a{number:02}") for number in range(100)]
    server(cells["cell2"], "b")
    page = asked(admin, cells, "all_tenants=1&limit=90&sort_key=display_name&sort_dir=asc")
    assert page == (made[:90], {"cell0": 0, "cell1": 2, "cell2": 1})


def test_servers_deleted_a_moment_ago_are_replaced_by_those_of_other_cells(admin, cells):
    ended = {"deleted": True, "vm_state": "deleted"}
    for age in range(40):
        server(cells["cell1"], age=age, **ended)
    made = [server(cells["cell2"], age=100 + age) for age in range(30)]
    assert asked(admin, cells, "all_tenants=1&limit=10") == (made[:10], {"cell0": 0, "cell1": 1, "cell2": 1})
    InstanceMapping.objects.filter(queued_for_delete=True).update(is_deleted=True)
    assert asked(admin, cells, "all_tenants=1&limit=10") == (made[:10], {"cell0": 0, "cell1": 0, "cell2": 1})


def test_a_project_without_servers_asks_no_cell(api, cells):
    server(cells["cell1"], project_id=OTHER_PROJECT)
    nowhere = dict.fromkeys(CELLS, 0)
    assert asked(api, cells, "limit=10") == asked(api, cells, "name=a") == asked(api, cells, "") == ([], nowhere)


def test_no_cell_reads_more_keys_or_rows_than_the_page_has(admin, cells):
    for index in range(30):
        marker = server(cells["cell1" if index % 3 else "cell2"], age=index)
    with counted() as seen:
        answer = admin.get(f"/servers/detail?all_tenants=1&limit=5&sort_key=created_at&sort_dir=asc&marker={marker}")
    assert len(answer.json()["servers"]) == 5
    asked = [query for alias, queries in seen.items() if alias != "default" for query in queries]
    reads = [(sql, parameters) for sql, parameters in asked if 'FROM "compute_instance"' in sql]
    assert reads
    for sql, parameters in reads:
        assert "LIMIT 5" in sql or '"uuid" = ' in sql or (" IN (" in sql and parameters <= 5), sql


@pytest.mark.parametrize(("path", "more"), [
    ("/servers", 1), ("/servers/detail", 1), ("/servers?last_known=true", 2), ("/servers/{}", 2), ("/os-services", 1),
])  # fmt: skip
def test_a_cell_that_is_down_costs_a_query_of_the_global_side_and_none_of_its_own(path, more, admin, cells):
    project = admin.caller.project_id
    shown, *_ = [server(cells["cell1"], age=age, project_id=project) for age in range(20)]
    server(cells["cell2"], project_id=project)

    def queries():
        with counted() as seen:
            assert admin.get(path.format(shown)).status_code == 200
        return {alias: len(found) for alias, found in seen.items()}

    up = queries()
    circuit_breaker.record_failure(cells["cell1"].id, "ordered")
    down = queries()
    assert down["default"] <= up["default"] + more
    assert cells["cell1"].alias not in down
    assert all(down[alias] <= up[alias] for alias in down if alias != "default")
