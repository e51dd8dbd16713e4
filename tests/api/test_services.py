"""Services of all cells, and the zones they are in."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from cells.context import target_cell
from cells.models import HostMapping
from compute.models import Allocation, ComputeNode, Service
from tests.cells import rows


@pytest.fixture
def fleet(cells):
    """A host in cell1 and one in cell2, and the conductor of cell1."""
    made = {
        "h1": rows.service(cells["cell1"], "h1", availability_zone="nova"),
        "c1": rows.service(cells["cell1"], "c1", "nova-conductor"),
        "h2": rows.service(cells["cell2"], "h2", availability_zone="east"),
    }
    for host, cell in (("h1", "cell1"), ("h2", "cell2")):
        HostMapping.objects.create(host=host, cell=cells[cell])
    return made


def listed(answer):
    assert answer.status_code == 200, answer.json()
    return {one["host"]: one for one in answer.json()["services"]}


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


def stored(cell, host):
    with target_cell(cell):
        return Service.objects.get(host=host)


def test_services_of_all_cells(admin, fleet):
    found = listed(admin.get("/os-services"))

    assert set(found) == {"h1", "c1", "h2"}
    assert found["h2"] | {"updated_at": None} == {
        "id": fleet["h2"].uuid, "binary": "nova-compute", "host": "h2", "zone": "east", "status": "enabled",
        "state": "up", "updated_at": None, "disabled_reason": None, "forced_down": False,
    }  # fmt: skip
    assert found["c1"]["zone"] == "internal"
    assert set(listed(admin.get("/os-services?host=h1"))) == {"h1"}
    assert set(listed(admin.get("/os-services?binary=nova-conductor"))) == {"c1"}


def test_ids_are_numbers_that_last_before_2_53(admin, fleet):
    old = listed(admin.get("/os-services", version="2.10"))

    assert "forced_down" not in old["h1"]
    assert isinstance(old["h1"]["id"], int)
    assert len({one["id"] for one in old.values()}) == 3
    assert old == listed(admin.get("/os-services", version="2.10"))


def test_a_service_that_does_not_beat_is_down(admin, cells):
    rows.service(cells["cell1"], "h1", last_seen_up=timezone.now() - timedelta(hours=1))
    assert listed(admin.get("/os-services"))["h1"]["state"] == "down"


def test_services_are_for_admins(api, fleet):
    assert api.get("/os-services").status_code == 403
    assert api.send("put", f"/os-services/{fleet['h1'].uuid}", {"status": "disabled"}).status_code == 403
    assert api.delete(f"/os-services/{fleet['h1'].uuid}").status_code == 403


def test_a_host_of_a_down_cell_is_unknown(admin, fleet, down_cell):
    HostMapping.objects.create(host="h3", cell=down_cell)

    found = listed(admin.get("/os-services"))

    assert found["h3"] == {"binary": "nova-compute", "host": "h3", "status": "UNKNOWN"}
    assert set(found) == {"h1", "c1", "h2", "h3"}
    assert set(listed(admin.get("/os-services", version="2.68"))) == {"h1", "c1", "h2"}
    assert set(listed(admin.get("/os-services?host=h1"))) == {"h1"}
    assert set(listed(admin.get("/os-services?binary=nova-conductor"))) == {"c1"}


def test_disable_enable_and_force_down(admin, fleet, cells):
    path = f"/os-services/{fleet['h1'].uuid}"

    wanted = {"status": "disabled", "disabled_reason": "fans", "forced_down": "yes"}
    disabled = admin.send("put", path, wanted)
    assert disabled.status_code == 200
    shown = disabled.json()["service"]
    assert (shown["status"], shown["disabled_reason"], shown["forced_down"]) == ("disabled", "fans", True)
    assert shown["state"] == "down"
    assert stored(cells["cell1"], "h1").disabled

    enabled = admin.send("put", path, {"status": "enabled"}).json()["service"]
    assert (enabled["status"], enabled["disabled_reason"], enabled["forced_down"]) == ("enabled", None, True)
    assert admin.send("put", path, {"forced_down": False}).json()["service"]["state"] == "up"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "No updates were requested. Fields 'status' or 'forced_down' should be specified."),
        (
            {"disabled_reason": "x"},
            "No updates were requested. Fields 'status' or 'forced_down' should be specified.",
        ),
        (
            {"status": "enabled", "disabled_reason": "x"},
            "Specifying 'disabled_reason' with status 'enabled' is invalid.",
        ),
        ({"colour": "red"}, "Additional properties are not allowed ('colour' was unexpected)"),
        (
            {"status": "on"},
            "Invalid input for field/attribute status. Value: on. 'on' is not one of ['enabled', 'disabled']",
        ),
    ],
)
def test_a_wrong_update_is_named(admin, fleet, body, text):
    assert message(admin.send("put", f"/os-services/{fleet['h1'].uuid}", body), 400) == text


def test_only_hosts_can_be_updated(admin, fleet):
    answer = admin.send("put", f"/os-services/{fleet['c1'].uuid}", {"status": "disabled"})
    assert message(answer, 400) == (
        "Updating a nova-conductor service is not supported. Only nova-compute services can be updated."
    )


def test_unknown_ids(admin, fleet):
    nobody = str(uuid4())
    body = {"status": "disabled"}
    text = f"Compute service {nobody} could not be found."

    assert message(admin.send("put", f"/os-services/{nobody}", body), 404) == text
    assert message(admin.send("put", "/os-services/1", body), 400) == "Invalid uuid 1"
    assert message(admin.delete(f"/os-services/{nobody}"), 404) == text


def test_an_id_that_may_be_in_a_down_cell(admin, fleet, down_cell):
    nobody = str(uuid4())
    assert admin.send("put", f"/os-services/{nobody}", {"status": "disabled"}).status_code == 503
    assert admin.delete(f"/os-services/{nobody}").status_code == 503
    assert admin.send("put", f"/os-services/{fleet['h1'].uuid}", {"status": "disabled"}).status_code == 200


def test_the_actions_of_old_versions(admin, fleet, cells):
    name = {"host": "h1", "binary": "nova-compute"}

    def act(action, version="2.52", **more):
        return admin.send("put", f"/os-services/{action}", {**name, **more}, version=version)

    reasoned = act("disable-log-reason", disabled_reason="fans").json()["service"]
    assert reasoned == {**name, "status": "disabled", "disabled_reason": "fans"}
    assert stored(cells["cell1"], "h1").disabled_reason == "fans"
    assert act("enable").json()["service"] == {**name, "status": "enabled"}
    assert stored(cells["cell1"], "h1").disabled_reason is None
    assert act("disable").json()["service"] == {**name, "status": "disabled"}
    assert act("force-down", forced_down=True).json()["service"] == {**name, "forced_down": True}
    assert act("force-down", version="2.10", forced_down=True).status_code == 404
    assert message(act("dance"), 404) == "Unknown action"
    assert message(act("enable", host="h9"), 404) == "Could not find binary nova-compute on host h9."
    assert act("disable-log-reason").status_code == 400


def test_a_host_without_servers_can_be_deleted(admin, fleet, cells):
    rows.node(cells["cell1"], "h1")

    assert admin.delete(f"/os-services/{fleet['h1'].uuid}").status_code == 204

    assert set(listed(admin.get("/os-services"))) == {"c1", "h2"}
    assert not HostMapping.objects.filter(host="h1").exists()
    with target_cell(cells["cell1"]):
        assert not ComputeNode.objects.filter(host="h1").exists()
    number = listed(admin.get("/os-services", version="2.1"))["c1"]["id"]
    assert admin.delete(f"/os-services/{number}", version="2.1").status_code == 204


def test_a_host_with_servers_or_claims_stays(admin, fleet, cells):
    path = f"/os-services/{fleet['h1'].uuid}"
    text = (
        "Unable to delete compute service that is hosting instances. "
        "Migrate or delete the instances first."
    )
    node = rows.node(cells["cell1"], "h1")
    with target_cell(cells["cell1"]):
        claim = Allocation.objects.create(server_id="s", node=node, vcpus=1, memory_mb=1, disk_gb=0)
    assert message(admin.delete(path), 409) == text

    with target_cell(cells["cell1"]):
        claim.delete()
    rows.server(cells["cell1"], host="h1")
    assert message(admin.delete(path), 409) == text

    assert "h1" in listed(admin.get("/os-services"))
    assert HostMapping.objects.filter(host="h1").exists()


def test_fifty_hosts_cost_as_many_queries_as_two(admin, cells, queries):
    for number in range(2):
        rows.service(cells["cell1"], f"h{number}")
    few = queries(lambda: listed(admin.get("/os-services")))
    for number in range(2, 50):
        rows.service(cells["cell1"], f"h{number}")
    many = queries(lambda: listed(admin.get("/os-services")))

    assert few == many
    assert few <= 5  # aggregates, once


def zones(answer):
    assert answer.status_code == 200, answer.json()
    return answer.json()["availabilityZoneInfo"]


def test_zones_are_those_of_hosts(api, fleet, down_cell):
    assert zones(api.get("/os-availability-zone")) == [
        {"zoneName": "east", "zoneState": {"available": True}, "hosts": None},
        {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None},
    ]
    assert api.get("/os-availability-zone/detail").status_code == 403


def test_a_zone_without_an_enabled_host_is_not_available(admin, fleet):
    admin.send("put", f"/os-services/{fleet['h2'].uuid}", {"status": "disabled"})

    found = {one["zoneName"]: one for one in zones(admin.get("/os-availability-zone/detail"))}

    assert found["east"] == {"zoneName": "east", "zoneState": {"available": False}, "hosts": None}
    assert found["nova"]["hosts"]["h1"]["nova-compute"]["available"] is True
    assert found["nova"]["hosts"]["h1"]["nova-compute"]["active"] is True
    assert set(found["internal"]["hosts"]) == {"c1"}
