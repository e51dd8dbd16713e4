"""Draining through the API: asking for it, seeing it, and what it does to everybody else's requests."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from cells.models import HostMapping
from compute.models import InstanceAction, Service, Step
from tests.api.test_services import listed, message, stored, zones
from tests.cells import rows

KEY = "stillwater:drain"
NOVAS = {
    "binary", "host", "id", "zone", "status", "state", "updated_at", "disabled_reason", "forced_down",
}  # fmt: skip


@pytest.fixture
def fleet(cells):
    """A host and a conductor in cell1, a host in cell2, a scheduler in cell0."""
    made = {
        "h1": rows.service(cells["cell1"], "h1", availability_zone="nova"),
        "c1": rows.service(cells["cell1"], "c1", "nova-conductor"),
        "h2": rows.service(cells["cell2"], "h2", availability_zone="east"),
        "s1": rows.service(cells["cell0"], "s1", "nova-scheduler"),
    }
    for host, cell in (("h1", "cell1"), ("h2", "cell2")):
        HostMapping.objects.create(host=host, cell=cells[cell])
    return made


def put(client, service, wanted, version="2.96", **more):
    return client.send("put", f"/os-services/{service.uuid}", {KEY: wanted, **more}, version=version)


def drains(cell, host, **columns):
    """What the process itself writes when it begins to drain."""
    with target_cell(cell):
        Service.objects.filter(host=host).update(**{"draining_since": timezone.now()} | columns)


def queued(cell, host, queue="requests"):
    """A request nobody has begun."""
    now = timezone.now()
    with target_cell(cell):
        action = InstanceAction.objects.create(
            server_id="s", action="stop", key="os-stop", request_id="r", started_at=now, updated_at=now
        )
        Step.objects.create(
            action=action, server_id="s", name="stop", event="e", host=host, queue=queue, queued_at=now
        )


# -- seeing it


def test_a_service_that_takes_work_is_novas_to_the_letter(admin, fleet):
    for found in listed(admin.get("/os-services")).values():
        assert set(found) == NOVAS
    assert set(listed(admin.get("/os-services", version="2.1"))["h1"]) == NOVAS - {"forced_down"}


@pytest.mark.parametrize("version", ["2.1", "2.52", "2.96"])
def test_a_drain_is_shown_to_every_client(admin, fleet, cells, version):
    put(admin, fleet["h1"], {"reason": "new kernel", "timeout": 600})
    drains(cells["cell1"], "h1", in_progress=3)
    for queue in ("requests", "requests", "ops"):
        queued(cells["cell1"], "h1", queue)

    found = listed(admin.get("/os-services", version=version))

    drain = found["h1"][KEY]
    service = stored(cells["cell1"], "h1")
    assert drain == {
        "state": "draining", "since": f"{service.draining_since:%Y-%m-%dT%H:%M:%S.%f}", "drained_at": None,
        "by": "api:someone", "reason": "new kernel",
        "deadline": f"{service.drain_deadline:%Y-%m-%dT%H:%M:%S.%f}", "exit": False,
        "in_progress": 3, "waiting": 2,
    }  # fmt: skip
    assert found["h1"]["status"] == "enabled"
    assert found["h1"]["state"] == "up"
    assert found["h1"]["disabled_reason"] == f"draining since {drain['since']} by api:someone: new kernel"
    assert all(KEY not in found[host] for host in ("c1", "h2", "s1"))


def test_a_disabled_service_keeps_its_own_reason_while_it_drains(admin, fleet):
    answer = put(admin, fleet["h1"], {"reason": "new kernel"}, status="disabled", disabled_reason="fans")
    shown = answer.json()["service"]
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "fans")
    assert shown[KEY]["reason"] == "new kernel"


def test_drained_and_ended(admin, fleet, cells):
    now = timezone.now()
    drains(cells["cell1"], "h1", drained_at=now)
    found = listed(admin.get("/os-services"))["h1"]
    assert found[KEY]["state"] == "drained"
    assert found[KEY]["by"] is None  # nobody wanted it: a signal
    assert found["disabled_reason"] == f"drained since {now:%Y-%m-%dT%H:%M:%S.%f}"

    drains(cells["cell1"], "h1", ended_at=now)
    assert listed(admin.get("/os-services"))["h1"]["state"] == "down"


def test_a_hypervisor_says_why_it_takes_no_servers(admin, fleet, cells):
    rows.node(cells["cell1"], "h1")
    put(admin, fleet["h1"], {"reason": "new kernel"})
    (found,) = admin.get("/os-hypervisors/detail").json()["hypervisors"]
    assert found["status"] == "enabled"
    assert found["service"]["disabled_reason"].endswith("new kernel")


def test_a_zone_where_everything_drains_is_not_available(admin, fleet):
    put(admin, fleet["h2"], {})
    found = {one["zoneName"]: one["zoneState"]["available"] for one in zones(admin.get("/os-availability-zone"))}
    assert found == {"east": False, "nova": True}


def test_fifty_draining_hosts_cost_as_many_queries_as_two(admin, cells, queries):
    def drain(numbers):
        for number in numbers:
            rows.service(cells["cell1"], f"h{number}", draining_since=timezone.now())
            queued(cells["cell1"], f"h{number}")
        return queries(lambda: listed(admin.get("/os-services")))

    few, many = drain(range(2)), drain(range(2, 50))
    assert few == many
    assert few <= 6


# -- asking for it


def test_drain_extend_and_undrain(admin, fleet, cells):
    assert put(admin, fleet["h1"], {"timeout": 60, "exit": True}).json()["service"][KEY]["exit"] is True
    first = stored(cells["cell1"], "h1")
    assert first.drain_then_exit
    assert first.drain_deadline - first.drain_asked_at == timedelta(seconds=60)

    assert put(admin, fleet["h1"], {"extend": 600}).status_code == 200
    longer = stored(cells["cell1"], "h1")
    assert longer.drain_deadline > first.drain_deadline + timedelta(seconds=500)
    assert put(admin, fleet["h1"], {"extend": 0}).json()["service"][KEY]["deadline"] is None
    assert stored(cells["cell1"], "h1").drain_then_exit  # only the deadline moved

    again = put(admin, fleet["h1"], {"reason": "the last word counts"}).json()["service"][KEY]
    assert (again["reason"], again["exit"]) == ("the last word counts", False)
    put(admin, fleet["h1"], {"timeout": 5})  # somebody at a second terminal gives none: what it is for is known
    assert stored(cells["cell1"], "h1").drain_reason == "the last word counts"

    assert put(admin, fleet["h1"], None).json()["service"].keys() == NOVAS
    assert not stored(cells["cell1"], "h1").drain_wanted
    put(admin, fleet["h1"], {})
    assert stored(cells["cell1"], "h1").drain_reason == ""  # a new drain has no old reason
    put(admin, fleet["h1"], None)
    assert put(admin, fleet["h1"], None).status_code == 200  # once more, without harm


@pytest.mark.parametrize(("host", "cell"), [("c1", "cell1"), ("s1", "cell0")])
def test_conductors_and_schedulers_drain_too(admin, fleet, cells, host, cell):
    assert put(admin, fleet[host], {"reason": "upgrade"}).status_code == 200
    assert stored(cells[cell], host).drain_wanted
    refused = put(admin, fleet[host], {}, status="disabled")
    assert message(refused, 400).startswith(f"Updating a {fleet[host].binary} service is not supported.")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (
            "yes",
            "Invalid input for field/attribute stillwater:drain. Value: yes. "
            "'yes' is not of type 'object', 'null'",
        ),
        ({"reason": ""}, "Invalid input for field/attribute reason. Value: . '' should be non-empty"),
        ({"timeout": -1}, "Invalid input for field/attribute timeout. Value: -1. -1 is less than the minimum of 0"),
        (
            {"timeout": 1e300},
            "Invalid input for field/attribute timeout. Value: 1e+300. 1e+300 is greater than the maximum of 31622400",
        ),
        ({"exit": "yes"}, "Invalid input for field/attribute exit. Value: yes. 'yes' is not of type 'boolean'"),
        ({"extend": True}, "Invalid input for field/attribute extend. Value: True. True is not of type 'number'"),
        ({"colour": "red"}, "Additional properties are not allowed ('colour' was unexpected)"),
        (
            {"extend": 5, "exit": True},
            "Invalid input for field/attribute stillwater:drain. Value: {'extend': 5, 'exit': True}. "
            "{'extend': 5, 'exit': True} has too many properties",
        ),
    ],
)  # fmt: skip
def test_a_wrong_drain_request_is_named(admin, fleet, cells, wanted, text):
    assert message(put(admin, fleet["h1"], wanted), 400) == text
    assert not stored(cells["cell1"], "h1").drain_wanted


def test_what_makes_no_sense_is_refused_and_changes_nothing(admin, fleet, cells):
    early = put(admin, fleet["h1"], {"extend": 60}, status="disabled")
    assert message(early, 409) == "Service nova-compute@h1 is not draining: there is no deadline to move."
    assert not stored(cells["cell1"], "h1").disabled

    drains(cells["cell1"], "h1", draining_since=None, last_seen_up=timezone.now() - timedelta(hours=1))
    for wanted in ({}, {"extend": 60}):
        dead = put(admin, fleet["h1"], wanted)
        assert message(dead, 409) == "Service nova-compute@h1 is down; it cannot be drained."
    assert put(admin, fleet["h1"], None).status_code == 200  # so that its next life takes work


def test_only_admins_drain_and_only_since_2_53(admin, api, fleet, cells):
    assert put(api, fleet["h1"], {}).status_code == 403
    assert put(admin, fleet["h1"], {}, version="2.52").status_code == 404  # an action of that name, in Nova
    assert not stored(cells["cell1"], "h1").drain_wanted


def test_a_service_that_may_be_in_a_down_cell(admin, fleet, down_cell):
    hidden = Service(uuid="12345678-1234-4234-8234-123456789012")
    assert put(admin, hidden, {}).status_code == 503
    assert put(admin, fleet["h1"], {}).status_code == 200
