"""Servers that are whole machines: one host serves many nodes, and each is one server's or nobody's."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import drain_dry_run, drain_migrations, drain_moves, guest_shutdown
from compute.models import ComputeNode, Flavor, InstanceAction
from compute.placement import inventory
from tasks import boot_marker, restart_guests
from tests.api.queries import counted
from tests.flow import going_down, machines, stories
from tests.flow.stories import act, message
from tests.flow.two_hosts import LIVE

NONE = "No valid host was found. No host passed the filter for: {}."


@pytest.fixture
def metal(cloud):
    """Three machines behind one host, in cell1, and the flavor that asks for one."""
    machines.flavor()
    return machines.add(cloud, 3)


@pytest.fixture
def boot(api, cloud, metal):
    def booted(name="a", client=api, flavor="gold", **server):
        return cloud.boot(client, name, flavorRef=flavor, **server)

    return booted


def fault(client, server_id):
    server = client.get(f"/servers/{server_id}").json()["server"]
    assert server["status"] == "ERROR", server
    return server["fault"]["message"]


# -- where they go


def test_each_server_gets_a_machine_of_its_own_and_the_fourth_none(api, cloud, metal, boot):
    servers = [boot(f"s{n}") for n in range(3)]
    rows = [cloud.row(server_id) for server_id in servers]
    assert {row.host for row in rows} == {"metal"}
    assert {row.node for row in rows} == set(machines.nodes(metal))
    assert {row.uuid: row.node for row in rows} == metal.driver._state.placed()
    for node in machines.nodes(metal).values():
        assert (node.vcpus_used, node.memory_mb_used) == (8, 4096)
    assert fault(api, boot("d")) == NONE.format("machines that are free")


def test_a_virtual_machine_is_never_put_on_a_machine_nor_the_other_way_round(api, admin, cloud, metal, boot):
    for name in ("host1", "host2"):
        with target_cell(cloud.hosts[name].cell):
            ComputeNode.objects.filter(host=name).update(memory_mb=0)
    assert fault(api, boot("vm", flavor="1")) == NONE.format("memory")
    assert fault(admin, boot("forced", client=admin, flavor="1", host="metal")) == NONE.format(
        "resource class of the flavor"
    )
    assert fault(admin, boot("here", client=admin, availability_zone="nova:host1")) == NONE.format(
        "resource class of the flavor"
    )
    assert machines.held(metal) == {}


@pytest.mark.parametrize("specs", [
    {"resources:CUSTOM_BAREMETAL_SILVER": "1"},
    {"resources:CUSTOM_BAREMETAL_GOLD": "2"},
    {"resources:CUSTOM_BAREMETAL_GOLD": "1", "resources:CUSTOM_BAREMETAL_SILVER": "1"},
])  # fmt: skip
def test_what_no_machine_is_gets_none(specs, api, boot):
    machines.flavor("odd", **specs)
    assert fault(api, boot(flavor="odd")) == NONE.format("resource class of the flavor")


def test_a_machine_can_be_named(admin, cloud, metal, boot):
    wanted = sorted(machines.nodes(metal))[1]
    assert cloud.row(boot(client=admin, hypervisor_hostname=wanted)).node == wanted
    taken = boot("b", client=admin, availability_zone=f"nova:metal:{wanted}")
    assert fault(admin, taken) == NONE.format("machines that are free")


def test_a_machine_in_maintenance_gets_no_server_and_keeps_the_one_it_has(api, cloud, metal, boot):
    kept = boot()
    for node in machines.nodes(metal):
        metal.driver.machines.take_out_of_use(node, "maintenance: fan broken")
    metal.report()
    assert {node.out_of_use for node in machines.nodes(metal).values()} == {"maintenance: fan broken"}
    assert fault(api, boot("b")) == NONE.format("not in maintenance or cleaning")
    assert machines.held(metal) == {cloud.row(kept).node: [kept]}
    for node in machines.nodes(metal):
        metal.driver.machines.take_out_of_use(node)
    metal.report()
    assert cloud.row(boot("c")).vm_state == "active"


def test_a_build_that_fails_is_tried_on_another_machine_of_the_same_host(cloud, metal, boot):
    metal.driver.faults.fail("spawn", times=2)
    row = cloud.row(boot())
    assert (row.vm_state, row.host) == ("active", "metal")
    (action,) = cloud.history(row.uuid)
    assert len(set(action.params["tried"])) == 2
    assert row.node not in action.params["tried"]
    assert machines.held(metal) == {row.node: [row.uuid]}


def test_a_build_that_fails_everywhere_leaves_every_machine_free(api, cloud, metal, boot):
    metal.driver.faults.fail("spawn", times=3)
    assert "Exhausted all hosts available" in fault(api, boot())
    assert machines.held(metal) == {}
    assert {node.vcpus_used for node in machines.nodes(metal).values()} == {0}


def test_a_machine_that_was_left_waits_until_its_host_has_looked_at_it(api, cloud, metal, boot):
    servers = [boot(f"s{n}") for n in range(3)]
    left = cloud.row(servers[0]).node
    assert api.delete(f"/servers/{servers[0]}").status_code == 204
    cloud.work()
    assert machines.nodes(metal)[left].out_of_use == inventory.LEFT
    assert fault(api, boot("early")) == NONE.format("not in maintenance or cleaning")
    metal.report()
    assert cloud.row(boot("again")).node == left


def test_anti_affinity_is_of_machines_not_of_the_host_that_serves_them(api, admin, cloud, boot):
    group = {"name": "apart", "policy": "anti-affinity"}
    made = api.send("post", "/os-server-groups", {"server_group": group}).json()["server_group"]["id"]
    for name in ("a", "b"):
        body = cloud.body(name, flavorRef="gold") | {"os:scheduler_hints": {"group": made}}
        server_id = api.send("post", "/servers", body).json()["server"]["id"]
        cloud.work()
        assert cloud.row(server_id).vm_state == "active"


# -- what a host says of its nodes


def test_a_thousand_nodes_are_written_with_as_many_queries_as_ten(cloud):
    for name, count in (("few", 10), ("many", 1000)):
        machines.add(cloud, count, name)
    few, many = (_queries_of_a_report(cloud.hosts[name]) for name in ("few", "many"))
    assert len(machines.nodes(cloud.hosts["many"])) == 1000
    assert many == few <= 6


def _queries_of_a_report(host):
    for node in list(machines.nodes(host))[:3]:
        host.driver.machines.take_out_of_use(node, "maintenance")
    with target_cell(host.cell) as alias, counted() as asked:
        inventory.record(host.name, host.driver.nodes())
    assert sum(node.out_of_use == "maintenance" for node in machines.nodes(host).values()) == 3
    return len(asked[alias])


def test_a_report_leaves_what_is_claimed_alone(cloud, metal, boot):
    server_id = boot()
    before = machines.nodes(metal)
    metal.driver._facts = ("metal", 16, 8192, 100, "127.0.0.1")
    metal.report()
    after = machines.nodes(metal)
    assert {node.vcpus for node in after.values()} == {16}
    assert {name: node.vcpus_used for name, node in after.items()} == {
        name: node.vcpus_used for name, node in before.items()
    }
    assert {name: (node.pk, node.uuid) for name, node in after.items()} == {
        name: (node.pk, name) for name, node in before.items()
    }
    assert machines.held(metal) == {cloud.row(server_id).node: [server_id]}


def test_a_node_that_vanishes_goes_and_one_that_is_held_stays_out_of_use(api, cloud, metal, boot):
    server_id = boot()
    held = cloud.row(server_id).node
    names = sorted(machines.nodes(metal))
    for name in names:
        metal.driver.machines.remove(name)
    metal.report()
    assert {name: node.out_of_use for name, node in machines.nodes(metal).items()} == {held: inventory.GONE}
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    metal.report()
    assert machines.nodes(metal) == {}
    for name in names:
        metal.driver.machines.put_back(name)
    metal.report()
    assert {node.out_of_use for node in machines.nodes(metal).values()} == {""}


def test_a_machine_that_is_held_stays_with_the_host_of_its_server(cloud, metal, boot):
    held = cloud.row(boot()).node
    other = cloud.add_host("other", "cell1")
    with target_cell(other.cell):
        inventory.record("other", [*other.driver.nodes(), *metal.driver.nodes()])
        hosts = dict(ComputeNode.objects.filter(is_whole=True).values_list("hypervisor_hostname", "host"))
    assert hosts.pop(held) == "metal"
    assert list(hosts.values()) == ["other", "other"]


def test_a_host_may_serve_several_nodes_of_virtual_machines(api, cloud):
    with target_cell(cloud.cells["cell2"]):
        ComputeNode.objects.all().delete()
    several = cloud.add_host("several", "cell2", nodes=2, memory_mb=1024)
    with target_cell(cloud.cells["cell1"]):
        ComputeNode.objects.all().delete()
    servers = [cloud.boot(api, f"s{n}") for n in range(4)]
    assert sorted(cloud.row(server_id).node for server_id in servers) == [
        "several-1", "several-1", "several-2", "several-2",
    ]  # fmt: skip
    assert {len(found) for found in machines.held(several).values()} == {2}
    assert fault(api, cloud.boot(api, "e")) == NONE.format("memory")


# -- what they can do


def test_a_machine_is_stopped_started_rebooted_rebuilt_and_deleted_like_any_server(api, cloud, metal, boot):
    server_id = boot()
    node = cloud.row(server_id).node
    for body, state in (
        ({"os-stop": None}, "stopped"), ({"os-start": None}, "active"), ({"reboot": {"type": "HARD"}}, "active"),
        ({"rebuild": {"imageRef": cloud.image.id}}, "active"),
    ):  # fmt: skip
        assert act(api, server_id, body).status_code == 202
        cloud.work()
        assert (*stories.states(cloud, server_id), cloud.row(server_id).node) == (state, None, node)
    assert machines.held(metal) == {node: [server_id]}
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert (machines.held(metal), metal.driver.guests()) == ({}, {})


CANNOT = [
    (LIVE, "os-migrateLive", "bare metal cannot move"),
    ({"migrate": None}, "migrate", "bare metal cannot move"),
    ({"resize": {"flavorRef": "2"}}, "resize", "bare metal cannot move"),
    ({"evacuate": {}}, "evacuate", "bare metal cannot move"),
    ({"shelve": None}, "shelve", "the disk of a machine cannot be made an image"),
    ({"createImage": {"name": "i"}}, "createImage", "the disk of a machine cannot be made an image"),
    ({"createBackup": {"name": "b", "backup_type": "daily", "rotation": 1}}, "createBackup",
     "the disk of a machine cannot be made an image"),
    ({"pause": None}, "pause", "a machine cannot be paused, nor its memory be saved"),
    ({"suspend": None}, "suspend", "a machine cannot be paused, nor its memory be saved"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "name", "why"), CANNOT, ids=[name for _, name, _ in CANNOT])
def test_what_a_machine_cannot_do_is_refused_before_anything_happens(body, name, why, admin, cloud, boot):
    server_id = boot(client=admin)
    Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=4, memory_mb=2048, disk_gb=2)
    answer = act(admin, server_id, body)
    said = f"Cannot '{name}' instance {server_id}: it is a bare-metal server, and {why}."
    assert (answer.status_code, message(answer)) == (400, said)
    assert [action.action for action in cloud.history(server_id)] == ["create"]
    assert stories.states(cloud, server_id) == ("active", None)


def test_a_virtual_machine_does_not_become_a_machine(api, cloud, metal):
    server_id = cloud.boot(api)
    answer = act(api, server_id, {"resize": {"flavorRef": "gold"}})
    assert (answer.status_code, message(answer)) == (
        400, "Flavor gold is of bare metal: no virtual machine can become one.",
    )  # fmt: skip


# -- the host that serves them


def test_a_host_of_machines_that_is_to_be_emptied_says_that_they_cannot_move(admin, cloud, metal, boot):
    server_id = boot(client=admin)
    (found,) = admin.get("/os-services?host=metal").json()["services"]
    with target_cell(metal.cell):
        said = drain_dry_run.of_host("metal")
    assert [(line.server_id, line.why) for line in said.blocked] == [(server_id, "bare metal cannot move")]
    answer = admin.send("put", f"/os-services/{found['id']}", {"stillwater:drain": {"migrate": {}}})
    assert answer.status_code == 200, answer.content
    with target_cell(metal.cell):
        drain_migrations.run_all()
        assert [(line.server_id, line.why) for line in drain_moves.read("metal").blocked] == [
            (server_id, "bare metal cannot move")
        ]
        assert not InstanceAction.objects.exclude(action="create").exists()


def test_machines_stay_on_when_the_host_that_serves_them_goes_down(cloud, metal, boot):
    boot()
    with target_cell(metal.cell):
        assert guest_shutdown.ask("metal", by="root") == ""


def test_each_node_is_a_hypervisor_and_they_share_a_service(admin, cloud, metal, boot):
    server_id = boot()
    listed = admin.get("/os-hypervisors/detail?with_servers=true").json()["hypervisors"]
    mine = {one["hypervisor_hostname"]: one for one in listed if one["service"]["host"] == "metal"}
    assert set(mine) == set(machines.nodes(metal))
    assert {one["id"] for one in mine.values()} == set(mine)
    assert len({one["service"]["id"] for one in mine.values()}) == 1
    node = cloud.row(server_id).node
    assert {name: [s["uuid"] for s in one["servers"]] for name, one in mine.items()} == {
        name: [server_id] if name == node else [] for name in mine
    }
    assert all(one["uptime"] is None for one in mine.values())
    old = admin.get(f"/os-hypervisors/{node}", version="2.53").json()["hypervisor"]
    assert (old["vcpus"], old["vcpus_used"], old["running_vms"]) == (8, 8, 1)
    assert admin.get(f"/os-hypervisors/{node}/uptime", version="2.53").status_code == 501
    services = admin.get("/os-services?host=metal").json()["services"]
    assert [one["binary"] for one in services] == ["nova-compute"]
    statistics = admin.get("/os-hypervisors/statistics", version="2.53").json()["hypervisor_statistics"]
    assert (statistics["count"], statistics["running_vms"]) == (5, 1)


def test_a_machine_found_off_when_its_worker_was_booted_went_off_by_itself(cloud, metal, boot, settings, tmp_path):
    settings.HOST_STATE = tmp_path
    row = cloud.row(boot())
    boot_marker.expect_boot(tmp_path)
    metal.driver.force_off(row.uuid)
    assert restart_guests.with_host(cloud.hosts["host1"].driver)
    assert not restart_guests.with_host(metal.driver)
    with target_cell(metal.cell):
        assert restart_guests.sync(going_down.process(metal)) == 1
    row = cloud.row(row.uuid)
    assert (row.vm_state, row.resumes_with_host) == ("stopped", False)
