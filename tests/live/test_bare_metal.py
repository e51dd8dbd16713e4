"""A whole cloud with a real Ironic: servers are its machines, and whoever switches one, the record is true."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from deploy.local.ironic import SILENT
from tests.live import metal
from tests.live.cloud import Cloud, eventually
from tests.live.metal import HOST, Rig

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
EVENT = "compute_power_update"


@pytest.fixture(scope="module")
def rig(fake_cloud: Cloud) -> Iterator[Rig]:
    """A host with three machines, in cell1."""
    with metal.beside(fake_cloud) as rig:
        yield rig


@pytest.fixture(scope="module")
def server(rig: Rig) -> str:
    """On a machine. Only what Ironic says changes its state: the power sync would else often be first."""
    return rig.boot(metadata={"power_truth": "record-only"})


def test_a_server_is_a_machine_that_ironic_deployed(rig, server):
    node = rig.ironic.node(rig.node(server))
    assert (node["instance_uuid"], node["provision_state"], node["power_state"]) == (server, "active", "power on")
    assert rig.stage.show(server)["OS-EXT-SRV-ATTR:host"] == HOST
    listed = rig.call("GET", "/os-hypervisors/detail").json()["hypervisors"]
    mine = {one["id"]: one["hypervisor_type"] for one in listed if one["service"]["host"] == HOST}
    assert len(mine) == 3
    assert (mine[node["uuid"]], set(mine.values())) == ("ironic", {"ironic"})


def test_our_own_stop_start_and_reboot_switch_the_machine(rig, server):
    for body, status, power in (
        ({"os-stop": None}, "SHUTOFF", "power off"), ({"os-start": None}, "ACTIVE", "power on"),
        ({"reboot": {"type": "HARD"}}, "ACTIVE", "power on"),
    ):  # fmt: skip
        rig.act(server, body, status)
        assert rig.power(server) == power
    rig.stays(server, "ACTIVE")  # what Ironic says of it all is no news
    *others, created = rig.actions(server)
    ours = [one["action"] for one in others if one["user_id"] == created["user_id"]]
    assert ours == ["reboot", "start", "stop"]
    theirs = [one for one in others if one["user_id"] != created["user_id"]]
    assert {event["event"] for one in theirs for event in one["events"]} <= {EVENT}


@pytest.mark.parametrize(("target", "status", "action"), [
    ("power off", "SHUTOFF", "stop"), ("power on", "ACTIVE", "start"),
])  # fmt: skip
def test_a_machine_that_is_switched_by_ironics_own_api_is_followed_and_stays_so(rig, server, target, status, action):
    rig.ironic.power(rig.node(server), target)
    seconds = rig.becomes(server, status)
    sys.stdout.write(f"\n{target} by Ironic's API: our server was {status} {seconds:.1f} s after\n")
    done, *_, created = rig.actions(server)
    assert (done["action"], done["message"]) == (action, None)
    assert done["request_id"].startswith("req-")
    assert done["user_id"] != created["user_id"]  # it was Ironic's request
    assert [event["event"] for event in done["events"]] == [EVENT]
    rig.believe(server, "hypervisor")
    rig.stays(server, status, rounds=3)
    rig.believe(server, "record-only")
    assert rig.power(server) == target
    assert rig.actions(server)[0]["request_id"] == done["request_id"]


def test_a_worker_that_is_down_hears_it_when_it_returns(rig, server):
    rig.kill()
    rig.ironic.power(rig.node(server), "power off")
    (newest, *_) = rig.call("GET", f"/servers/{server}/os-instance-actions").json()["instanceActions"]
    assert (newest["action"], rig.stage.show(server)["status"]) == ("stop", "ACTIVE")
    rig.start()
    rig.becomes(server, "SHUTOFF")
    done = rig.actions(server)[0]
    assert (done["request_id"], done["message"]) == (newest["request_id"], None)


def test_a_host_that_drains_hears_it(rig, server):
    service = rig.stage.service(HOST)["id"]
    drained = {"stillwater:drain": {"reason": "new rack"}}
    assert rig.call("PUT", f"/os-services/{service}", drained).status_code == 200
    eventually("it is drained", lambda: rig.stage.service(HOST)["stillwater:drain"]["state"] == "drained", 30)
    rig.ironic.power(rig.node(server), "power on")
    rig.becomes(server, "ACTIVE")
    assert [event["event"] for event in rig.actions(server)[0]["events"]] == [EVENT]
    assert rig.call("PUT", f"/os-services/{service}", {"stillwater:drain": None}).status_code == 200
    eventually("it takes work", lambda: not rig.stage.service(HOST).get("stillwater:drain"), 30)


def test_a_machine_that_ironic_turned_on_stays_on_while_its_event_is_late(rig, server):
    """Seen: Ironic held the node's lock while it sent; the sync's put-back waited for the lock, and forced it off."""
    with rig.deferred_events() as gate:
        node = rig.node(server)
        for truth in ("nova", "database"):
            rig.believe(server, truth)
            rig.act(server, {"os-stop": None}, "SHUTOFF")
            gate.clear()
            rig.ironic.call("PUT", f"/v1/nodes/{node}/states/power", {"target": "power on"})
            shown = rig.ironic.wait(node, power_state="power on", target_power_state=None)
            assert shown["reservation"]
            rig.stays(server, "SHUTOFF", rounds=8)
            assert rig.ironic.node(node)["power_state"] == "power on"
            assert rig.ironic.node(node)["reservation"]
            gate.set()
            rig.becomes(server, "ACTIVE")
            rig.stays(server, "ACTIVE", rounds=2)
            assert rig.power(server) == "power on"
            assert [event["event"] for event in rig.actions(server)[0]["events"]] == [EVENT]


def test_without_the_event_the_truth_that_was_chosen_wins(rig, server):
    rig.ironic.restart(nova=SILENT)
    rig.believe(server, "hypervisor")
    ours = rig.boot("ours", metadata={"power_truth": "database"})
    for uuid in (server, ours):
        rig.ironic.power(rig.node(uuid), "power off")
    seconds = rig.becomes(server, "SHUTOFF")
    sys.stdout.write(f"\npower off without an event: followed {seconds:.1f} s after\n")
    eventually("it is put back", lambda: rig.power(ours) == "power on")
    rig.becomes(ours, "ACTIVE")
    rig.stays(ours, "ACTIVE", rounds=3)
    assert (rig.power(ours), rig.power(server)) == ("power on", "power off")
    assert EVENT not in [event["event"] for one in rig.actions(ours) for event in one["events"]]


def test_a_machine_in_maintenance_is_left_alone(rig, server):
    free = rig.boot("third", metadata={"power_truth": "database"})
    node = rig.node(free)
    rig.ironic.maintain(node, "fan broken")
    rig.ironic.power(node, "power off")
    rig.stays(free, "ACTIVE", rounds=3)
    assert rig.ironic.node(node)["power_state"] == "power off"
    rig.ironic.maintained(node)
    eventually("it is put back", lambda: rig.ironic.node(node)["power_state"] == "power on")


def test_a_machine_whose_server_is_deleted_is_available_again(rig, server):
    node = rig.node(server)
    rig.delete(server)
    shown = rig.ironic.wait(node, provision_state="available")
    assert shown["instance_uuid"] is None
