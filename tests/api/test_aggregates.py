"""Aggregates, and the availability zones that come of them."""

from __future__ import annotations

import pytest

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import HostMapping
from compute.models import Aggregate, AggregateHost, Service
from tests.cells import rows
from tests.flow.stories import at_once


@pytest.fixture
def hosts(cells):
    """h1 and h3 in cell1, h2 in cell2; each says it is in zone nova."""
    for host, cell in (("h1", "cell1"), ("h2", "cell2"), ("h3", "cell1")):
        rows.service(cells[cell], host, availability_zone="nova")
        rows.node(cells[cell], host)
        HostMapping.objects.create(host=host, cell=cells[cell])


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


@pytest.fixture
def make(admin, hosts):
    """Make an aggregate with hosts in it; its id."""

    def made(name, zone=None, *hosts):
        order = {"name": name} | ({"availability_zone": zone} if zone else {})
        answer = admin.send("post", "/os-aggregates", {"aggregate": order})
        assert answer.status_code == 200, answer.content
        number = answer.json()["aggregate"]["id"]
        for host in hosts:
            assert act(admin, number, "add_host", host=host).status_code == 200
        return number

    return made


def act(admin, number, action, **order):
    return admin.send("post", f"/os-aggregates/{number}/action", {action: order})


def zones_of(admin):
    return {one["host"]: one.get("zone") for one in admin.get("/os-services?binary=nova-compute").json()["services"]}


def test_an_aggregate_from_its_birth_to_its_end(admin, hosts):
    answer = admin.send("post", "/os-aggregates", {"aggregate": {"name": "ssd", "availability_zone": "east"}})
    made = answer.json()["aggregate"]
    assert made.keys() == {
        "id", "uuid", "name", "availability_zone", "created_at", "updated_at", "deleted", "deleted_at",
    }  # fmt: skip
    path = f"/os-aggregates/{made['id']}"
    added = act(admin, made["id"], "add_host", host="h1").json()["aggregate"]
    assert (added["hosts"], added["metadata"], added["availability_zone"]) == (
        ["h1"], {"availability_zone": "east"}, "east",
    )  # fmt: skip
    said = act(admin, made["id"], "set_metadata", metadata={"ssd": "true", "old": "1"}).json()["aggregate"]
    assert said["metadata"] == {"availability_zone": "east", "ssd": "true", "old": "1"}
    assert act(admin, made["id"], "set_metadata", metadata={"old": None}).json()["aggregate"]["metadata"] == {
        "availability_zone": "east", "ssd": "true",
    }  # fmt: skip
    assert admin.send("put", path, {"aggregate": {"name": "flash"}}).json()["aggregate"]["name"] == "flash"
    (listed,) = admin.get("/os-aggregates").json()["aggregates"]
    assert listed == admin.get(path).json()["aggregate"]
    assert listed["updated_at"] is not None
    assert "uuid" not in admin.get(path, version="2.40").json()["aggregate"]

    assert message(admin.delete(path), 400).endswith("Reason: Host aggregate is not empty.")
    assert act(admin, made["id"], "remove_host", host="h1").json()["aggregate"]["hosts"] == []
    assert admin.delete(path).status_code == 200
    assert message(admin.get(path), 404) == f"Aggregate {made['id']} could not be found."
    assert admin.delete(path).status_code == 404


def test_what_is_wrong_is_said_as_nova_says_it(admin, make):
    number = make("a", None, "h1")
    again = admin.send("post", "/os-aggregates", {"aggregate": {"name": "a"}})
    assert message(again, 409) == "Aggregate a already exists."
    make("b")
    renamed = admin.send("put", f"/os-aggregates/{number}", {"aggregate": {"name": "b"}})
    assert message(renamed, 409) == "Aggregate b already exists."
    assert message(act(admin, number, "add_host", host="nowhere"), 404) == "Compute host nowhere could not be found."
    assert message(act(admin, number, "add_host", host="h1"), 409) == f"Aggregate {number} already has host h1."
    assert message(act(admin, number, "remove_host", host="h2"), 404) == f"Aggregate {number} has no host h2."
    assert message(act(admin, 999, "remove_host", host="h2"), 404) == "Aggregate 999 could not be found."
    emptied = act(admin, number, "set_metadata", metadata={"availability_zone": None})
    assert "does not support empty named" in message(emptied, 400)
    for method, path, body in (
        ("post", "/os-aggregates", {"aggregate": {}}),
        ("post", "/os-aggregates", {"aggregate": {"name": ""}}),
        ("post", "/os-aggregates", {"aggregate": {"name": "c", "availability_zone": "a:b"}}),
        ("put", f"/os-aggregates/{number}", {"aggregate": {}}),
        ("put", f"/os-aggregates/{number}", {"aggregate": {"color": "red"}}),
        ("get", "/os-aggregates/abc", None),
        ("post", f"/os-aggregates/{number}/action", {"add_host": {}}),
        ("post", f"/os-aggregates/{number}/action", {"explode": {}}),
        ("post", f"/os-aggregates/{number}/action", {"set_metadata": {"metadata": {"a": 1}}}),
    ):  # fmt: skip
        assert message(admin.send(method, path, body), 400), body


@pytest.mark.parametrize("method", ["get", "post"])
def test_only_admins_see_aggregates(method, api):
    body = {"aggregate": {"name": "a"}} if method == "post" else None
    assert api.send(method, "/os-aggregates", body).status_code == 403


def test_a_zone_is_where_its_hosts_are(admin, api, make, cells):
    number = make("a", None, "h1", "h2")
    assert act(admin, number, "set_metadata", metadata={"availability_zone": "east"}).status_code == 200
    assert zones_of(admin) == {"h1": "east", "h2": "east", "h3": "nova"}
    listed = api.get("/os-availability-zone").json()["availabilityZoneInfo"]
    assert {zone["zoneName"] for zone in listed} == {"east", "nova"}
    detail = admin.get("/os-availability-zone/detail").json()["availabilityZoneInfo"]
    assert {zone["zoneName"]: sorted(zone["hosts"]) for zone in detail} == {"east": ["h1", "h2"], "nova": ["h3"]}

    with target_cell(cells["cell1"]):  # what a host writes down when it begins to live, and at every beat
        Service.objects.filter(host="h1").update(availability_zone="nova")
    assert zones_of(admin)["h1"] == "east"
    assert act(admin, number, "remove_host", host="h1").status_code == 200
    assert zones_of(admin)["h1"] == "nova"


def test_a_host_is_in_one_zone(admin, make):
    make("a", "east", "h1")
    west, plain = make("b", "west"), make("c", None, "h1")
    why = "Reason: One or more hosts already in availability zone(s) ['east', 'west']."
    assert message(act(admin, west, "add_host", host="h1"), 409) == f"Cannot add host to aggregate {west}. {why}"
    refused = act(admin, plain, "set_metadata", metadata={"availability_zone": "west"})
    assert message(refused, 400).endswith(why)
    refused = admin.send("put", f"/os-aggregates/{plain}", {"aggregate": {"availability_zone": "west"}})
    assert message(refused, 400).endswith(why)
    assert act(admin, plain, "set_metadata", metadata={"availability_zone": "east"}).status_code == 200
    assert AggregateHost.objects.count() == 2
    assert Aggregate.objects.get(pk=west).hosts.count() == 0


def test_a_host_with_servers_keeps_its_zone(admin, make, cells):
    number, plain = make("a", "east", "h1"), make("b", None, "h1")
    other = make("c", "nova")
    rows.server(cells["cell1"], host="h1")
    rows.server(cells["cell2"], host="h2")
    why = "Reason: One or more hosts contain instances in this zone."
    assert message(act(admin, number, "remove_host", host="h1"), 409).endswith(why)
    assert message(act(admin, number, "add_host", host="h2"), 409).endswith(why)
    assert message(act(admin, number, "set_metadata", metadata={"availability_zone": "west"}), 400).endswith(why)
    assert zones_of(admin) == {"h1": "east", "h2": "nova", "h3": "nova"}
    # what leaves its zone alone is no change of it
    assert act(admin, plain, "set_metadata", metadata={"ssd": "true"}).status_code == 200
    assert act(admin, plain, "remove_host", host="h1").status_code == 200
    assert act(admin, other, "add_host", host="h2").status_code == 200
    assert act(admin, number, "add_host", host="h3").status_code == 200


def test_a_cell_that_is_down_is_named_only_where_it_has_to_be_asked(admin, make, cells):
    east, plain = make("a", "east"), make("b")
    circuit_breaker.record_failure(cells["cell2"].id, "ordered")
    refused = act(admin, east, "add_host", host="h2")
    assert message(refused, 503).startswith("Cell cell2 does not answer now")
    assert AggregateHost.objects.count() == 0
    assert act(admin, plain, "add_host", host="h2").status_code == 200
    assert act(admin, east, "add_host", host="h1").status_code == 200
    assert zones_of(admin)["h1"] == "east"


def test_two_admins_who_put_one_host_into_two_zones_at_once_put_it_into_one(admin, make):
    numbers = [make(f"a{n}", f"zone{n}") for n in range(6)]
    answers = at_once(6, lambda n: act(admin, numbers[n], "add_host", host="h1").status_code)
    assert sorted(answers) == [200, 409, 409, 409, 409, 409]
    assert AggregateHost.objects.count() == 1


def test_a_host_that_is_forgotten_is_in_no_aggregate(admin, make):
    make("a", "east", "h1")
    (service,) = admin.get("/os-services?host=h1").json()["services"]
    assert admin.delete(f"/os-services/{service['id']}").status_code == 204
    assert not AggregateHost.objects.exists()


def test_thirty_aggregates_cost_as_many_queries_as_one(admin, make, django_assert_num_queries):
    make("a", None, "h1", "h2")
    with django_assert_num_queries(2):
        admin.get("/os-aggregates")
    for number in range(29):
        Aggregate.objects.create(name=f"b{number}").hosts.create(host="h3")
    with django_assert_num_queries(2):
        assert len(admin.get("/os-aggregates").json()["aggregates"]) == 30
