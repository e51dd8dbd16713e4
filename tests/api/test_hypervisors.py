"""Hypervisors of all cells."""

import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from cells.models import Cell
from tests.cells import rows

USAGE = {
    "vcpus", "memory_mb", "local_gb", "vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb",
    "free_disk_gb", "current_workload", "running_vms", "disk_available_least", "cpu_info",
}  # fmt: skip
BRIEF = {"id", "hypervisor_hostname", "state", "status"}
FACTS = BRIEF | {"hypervisor_type", "hypervisor_version", "host_ip", "service"}


@pytest.fixture
def nodes(cells):
    """One hypervisor in cell1, with two servers of which one is busy, and one in cell2."""
    made = {}
    for host, cell in (("h1", "cell1"), ("h2", "cell2")):
        rows.service(cells[cell], host)
        made[host] = rows.node(
            cells[cell], host, started_at=timezone.now() - timedelta(days=2, hours=3, minutes=4),
            vcpus_used=2, memory_mb_used=384, disk_gb_used=10, cpu_info={"arch": "x86_64"},
        )  # fmt: skip
    made["s1"] = rows.server(cells["cell1"], host="h1", node="h1")
    made["s2"] = rows.server(cells["cell1"], host="h1", task_state="pausing")
    rows.server(cells["cell1"], host="h1", deleted=True)
    return made


def listed(answer):
    assert answer.status_code == 200, answer.json()
    return {one["hypervisor_hostname"]: one for one in answer.json()["hypervisors"]}


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


def test_the_list_is_brief(admin, nodes):
    found = listed(admin.get("/os-hypervisors"))

    assert found["h1"] == {
        "id": nodes["h1"].uuid, "hypervisor_hostname": "h1", "state": "up", "status": "enabled",
    }  # fmt: skip
    assert set(found) == {"h1", "h2"}


def test_detail_since_2_88(admin, nodes):
    found = listed(admin.get("/os-hypervisors/detail"))["h1"]

    assert set(found) == FACTS | {"uptime"}
    assert found["service"]["host"] == "h1"
    assert found["service"]["disabled_reason"] is None
    # As the command line client takes it apart.
    match = re.match(r"\s*(.+)\sup\s+(.+),\s+(.+)\susers?,\s+load average:\s(.+)", found["uptime"])
    assert match
    assert match[2].startswith("2 days,  3:0")


def test_detail_until_2_87(admin, nodes):
    found = listed(admin.get("/os-hypervisors/detail", version="2.87"))["h1"]

    assert set(found) == FACTS | USAGE
    assert {k: found[k] for k in USAGE} == {
        "vcpus": 8, "memory_mb": 16384, "local_gb": 100, "vcpus_used": 2, "memory_mb_used": 384,
        "local_gb_used": 10, "free_ram_mb": 16000, "free_disk_gb": 90, "disk_available_least": 90,
        "current_workload": 1, "running_vms": 2, "cpu_info": {"arch": "x86_64"},
    }  # fmt: skip
    old = listed(admin.get("/os-hypervisors/detail", version="2.27"))["h1"]
    assert old["cpu_info"] == '{"arch":"x86_64"}'
    assert isinstance(old["id"], int)
    assert isinstance(old["service"]["id"], int)


def test_show(admin, nodes):
    path = f"/os-hypervisors/{nodes['h1'].uuid}"

    assert set(admin.get(path).json()["hypervisor"]) == FACTS | {"uptime"}
    assert admin.get(path, version="2.53").json()["hypervisor"]["running_vms"] == 2
    number = listed(admin.get("/os-hypervisors", version="2.1"))["h1"]["id"]
    assert admin.get(f"/os-hypervisors/{number}", version="2.52").json()["hypervisor"]["id"] == number


def test_unknown_ids(admin, nodes):
    nobody = str(uuid4())

    text = f"Hypervisor with ID '{nobody}' could not be found."
    assert message(admin.get(f"/os-hypervisors/{nobody}"), 404) == text
    assert message(admin.get("/os-hypervisors/h1"), 400) == "Invalid uuid h1"
    text = "Hypervisor with ID 'h1' could not be found."
    assert message(admin.get("/os-hypervisors/h1", version="2.52"), 404) == text


def test_servers_on_request(admin, nodes):
    expected = [{"name": nodes[s].instance_name, "uuid": nodes[s].uuid} for s in ("s1", "s2")]

    found = listed(admin.get("/os-hypervisors?with_servers=true"))
    assert found["h1"]["servers"] == expected
    assert found["h2"]["servers"] == []
    assert "servers" not in listed(admin.get("/os-hypervisors?with_servers=1", version="2.74"))["h2"]
    one = admin.get(f"/os-hypervisors/{nodes['h1'].uuid}?with_servers=yes").json()["hypervisor"]
    assert one["servers"] == expected
    assert admin.get("/os-hypervisors?with_servers=maybe").status_code == 400
    old = listed(admin.get("/os-hypervisors/h1/servers", version="2.52"))
    assert old["h1"]["servers"] == expected
    assert admin.get("/os-hypervisors/h1/servers").status_code == 404


def test_a_name_pattern(admin, nodes):
    assert set(listed(admin.get("/os-hypervisors?hypervisor_hostname_pattern=H1"))) == {"h1"}
    assert set(listed(admin.get("/os-hypervisors/h/search", version="2.52"))) == {"h1", "h2"}
    text = "No hypervisor matching 'x' could be found."
    assert message(admin.get("/os-hypervisors?hypervisor_hostname_pattern=x"), 404) == text
    assert message(admin.get("/os-hypervisors/x/search", version="2.1"), 404) == text
    paged = admin.get("/os-hypervisors?hypervisor_hostname_pattern=h&limit=1")
    assert "Paging over hypervisors" in message(paged, 400)


def test_pages_run_over_cells(admin, nodes):
    first = admin.get("/os-hypervisors/detail?limit=1")
    assert set(listed(first)) == {"h1"}
    href = first.json()["hypervisors_links"][0]["href"]
    assert f"/os-hypervisors/detail?limit=1&marker={nodes['h1'].uuid}" in href

    assert set(listed(admin.get(f"/os-hypervisors?limit=1&marker={nodes['h1'].uuid}"))) == {"h2"}
    assert message(admin.get("/os-hypervisors?marker=x"), 400) == "marker [x] not found"
    old = admin.get("/os-hypervisors?limit=1", version="2.33").json()
    number = old["hypervisors"][0]["id"]
    assert set(listed(admin.get(f"/os-hypervisors?marker={number}", version="2.33"))) == {"h2"}
    assert set(listed(admin.get("/os-hypervisors?limit=1", version="2.32"))) == {"h1", "h2"}


def test_statistics(admin, nodes):
    sums = admin.get("/os-hypervisors/statistics", version="2.87").json()["hypervisor_statistics"]

    assert (sums["count"], sums["vcpus"], sums["free_ram_mb"], sums["running_vms"]) == (2, 16, 32000, 2)
    assert admin.get("/os-hypervisors/statistics").status_code == 404


def test_uptime(admin, nodes, cells):
    path = f"/os-hypervisors/{nodes['h1'].uuid}/uptime"

    found = admin.get(path, version="2.87").json()["hypervisor"]
    assert set(found) == BRIEF | {"uptime"}
    assert admin.get(path).status_code == 404
    rows.service(cells["cell1"], "h3", forced_down=True)
    down = rows.node(cells["cell1"], "h3")
    answer = admin.get(f"/os-hypervisors/{down.uuid}/uptime", version="2.87")
    assert message(answer, 400) == "Compute service of h3 is unavailable at this time."
    assert listed(admin.get("/os-hypervisors/detail"))["h3"]["uptime"] is None


def test_a_hypervisor_without_a_service_is_not_listed(admin, nodes, cells):
    rows.node(cells["cell1"], "orphan")
    assert set(listed(admin.get("/os-hypervisors"))) == {"h1", "h2"}


def test_a_down_cell_is_left_out(admin, nodes, down_cell):
    for path in ("/os-hypervisors", "/os-hypervisors/detail", "/os-hypervisors?with_servers=1"):
        assert set(listed(admin.get(path))) == {"h1", "h2"}
    sums = admin.get("/os-hypervisors/statistics", version="2.80").json()["hypervisor_statistics"]
    assert sums["count"] == 2
    assert admin.get(f"/os-hypervisors/{nodes['h1'].uuid}").status_code == 200
    assert admin.get(f"/os-hypervisors/{uuid4()}").status_code == 503


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/os-hypervisors?marker={uuid}", "2.96"), ("/os-hypervisors/detail?limit=1&marker=7", "2.33"),
        ("/os-hypervisors?hypervisor_hostname_pattern=h9", "2.53"), ("/os-hypervisors/h9/search", "2.52"),
        ("/os-hypervisors/h9/servers", "2.1"), ("/os-hypervisors/{uuid}/uptime", "2.87"),
    ],
)  # fmt: skip
def test_what_is_not_found_may_be_in_a_cell_that_is_down(admin, nodes, down_cell, path, version):
    answer = admin.get(path.format(uuid=uuid4()), version=version)
    assert answer.status_code == 503, answer.content
    assert "Cell cell3 does not answer now" in answer.json()["serviceUnavailable"]["message"]
    Cell.objects.filter(pk=down_cell.pk).delete()
    assert admin.get(path.format(uuid=uuid4()), version=version).status_code in (400, 404)


def test_hypervisors_are_for_admins(api, nodes):
    one = f"/os-hypervisors/{nodes['h1'].uuid}"
    for path in ("/os-hypervisors", "/os-hypervisors/detail", one):
        assert api.get(path).status_code == 403
    for path in ("/os-hypervisors/statistics", f"{one}/uptime", "/os-hypervisors/h1/search"):
        assert api.get(path, version="2.52").status_code == 403


def test_fifty_hosts_cost_as_many_queries_as_two(admin, cells, queries):
    def add(numbers):
        for number in numbers:
            rows.service(cells["cell1"], f"h{number}")
            rows.node(cells["cell1"], f"h{number}")
            rows.server(cells["cell1"], host=f"h{number}")

    def look():
        listed(admin.get("/os-hypervisors/detail?with_servers=1", version="2.87"))

    add(range(2))
    few = queries(look)
    add(range(2, 50))

    assert queries(look) == few
    assert few <= 1 + 4 * 3
