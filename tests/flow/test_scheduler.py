"""Where servers go, and what was requested for it: at boots and at moves."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cells.context import target_cell
from cloud.images.models import Image
from compute.models import Aggregate, ComputeNode, Flavor, Service
from tests.api.queries import counted
from tests.conftest import PROJECT
from tests.flow.stories import act, message, settled
from tests.flow.two_hosts import LIVE

NONE = "No valid host was found. No host passed the filter for: {}."


@pytest.fixture
def hosts(cloud):
    """host1 and host3 in cell1, host2 in cell2."""
    cloud.add_host("host3", "cell1")
    return cloud.hosts


@pytest.fixture
def boot(api, cloud, hosts):
    """Boot a server with hints; its id."""

    def booted(name="a", client=api, hints=None, **server):
        answer = client.send("post", "/servers", cloud.body(name, **server) | {"os:scheduler_hints": hints or {}})
        assert answer.status_code == 202, answer.content
        cloud.work()
        return answer.json()["server"]["id"]

    return booted


def host(cloud, server_id):
    return cloud.row(server_id).host


def fault(client, server_id):
    server = client.get(f"/servers/{server_id}").json()["server"]
    assert server["status"] == "ERROR", server
    return server["fault"]["message"]


def node(cloud, name, **columns):
    """Other facts of a host."""
    with target_cell(cloud.hosts[name].cell):
        ComputeNode.objects.filter(host=name).update(**columns)


def aggregate(name, *hosts, **metadata):
    made = Aggregate.objects.create(name=name, metadata=metadata)
    for one in hosts:
        made.hosts.create(host=one)


# -- hints


def test_a_server_goes_where_another_one_is_or_is_not(cloud, boot, admin, api):
    first = boot(client=admin, availability_zone="nova:host3")
    assert host(cloud, boot("b", hints={"same_host": first})) == "host3"
    apart = boot("c", hints={"different_host": [first]})
    assert host(cloud, apart) != "host3"
    both = boot("d", hints={"different_host": [first, apart]})
    assert {host(cloud, one) for one in (first, apart, both)} == {"host1", "host2", "host3"}
    assert host(cloud, boot("e", hints={"same_host": [first, apart], "different_host": first})) == host(cloud, apart)
    assert fault(api, boot("f", hints={"same_host": str(uuid4())})) == NONE.format("same_host")
    assert fault(api, boot("g", hints={"different_host": [first, apart, both]})) == NONE.format("different_host")


def test_hints_hold_at_moves(cloud, boot, admin):
    first = boot(client=admin, availability_zone="nova:host3")
    second = boot("b", client=admin, hints={"different_host": first}, host="host1")
    assert act(admin, second, LIVE).status_code == 202
    cloud.work()
    assert host(cloud, second) == "host1"
    assert cloud.history(second)[-1].message
    cloud.add_host("host4", "cell1", memory_mb=8192)
    assert act(admin, second, LIVE).status_code == 202
    cloud.work()
    assert host(cloud, second) == "host4"  # host3 has more room
    settled(cloud)


# -- what the image and the flavor ask for


@pytest.mark.parametrize(
    ("properties", "fits"),
    [
        ({"hw_architecture": "x86_64"}, True),
        ({"architecture": "i386"}, True),
        ({"hw_architecture": "arm64"}, False),
        ({"img_hv_type": "FAKE"}, True),
        ({"hypervisor_type": "vmware"}, False),
        ({"img_hv_requested_version": ">=1.0,<2"}, True),
        ({"hypervisor_version_requires": ">=6.2"}, False),
        ({"os_distro": "alpine"}, True),
    ],
)
def test_an_image_goes_where_it_can_run(properties, fits, cloud, boot, api):
    Image.objects.filter(pk=cloud.image.pk).update(properties=properties)
    server_id = boot()
    if fits:
        assert cloud.row(server_id).vm_state == "active"
    else:
        assert fault(api, server_id) == NONE.format("image properties")


def test_an_image_finds_the_one_host_that_runs_it(cloud, boot):
    Image.objects.filter(pk=cloud.image.pk).update(properties={"hw_architecture": "aarch64"})
    node(cloud, "host3", cpu_info={"arch": "aarch64"})
    assert host(cloud, boot()) == "host3"


@pytest.mark.parametrize(
    ("specs", "goes_to"),
    [
        ({"aggregate_instance_extra_specs:ssd": "true"}, {"host3"}),
        ({"aggregate_instance_extra_specs:rack": "<or> a <or> b"}, {"host3"}),
        ({"aggregate_instance_extra_specs:rack": "c"}, {"host2"}),
        ({"aggregate_instance_extra_specs:speed": ">= 10"}, {"host3"}),
        ({"aggregate_instance_extra_specs:ssd": "false"}, set()),
        ({"capabilities:hypervisor_type": "s== fake"}, {"host1", "host2", "host3"}),
        ({"capabilities:cpu_info:arch": "aarch64"}, {"host1"}),
        ({"capabilities:cpu_info:model:name": "x"}, set()),
        ({"hw:cpu_policy": "shared"}, {"host1", "host2", "host3"}),
    ],
)
def test_a_flavor_goes_where_its_extra_specs_say(specs, goes_to, cloud, boot, api):
    aggregate("fast", "host3", ssd="true", rack="b", speed="12")
    aggregate("far", "host2", rack="c, d")
    node(cloud, "host1", cpu_info={"arch": "aarch64"})
    Flavor.objects.filter(flavor_id="1").update(extra_specs=specs)
    server_id = boot()
    if goes_to:
        assert host(cloud, server_id) in goes_to
    else:
        assert "extra_specs" in fault(api, server_id) or "extra specs" in fault(api, server_id)


def test_a_resize_goes_where_the_new_flavor_may_be(cloud, boot, admin):
    cloud.add_host("host4", "cell1", memory_mb=8192)
    aggregate("fast", "host4", ssd="true")
    specs = {"aggregate_instance_extra_specs:ssd": "true"}
    Flavor.objects.create(flavor_id="2", name="m1.fast", vcpus=1, memory_mb=512, disk_gb=1, extra_specs=specs)
    server_id = boot(client=admin, host="host1")
    assert act(admin, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    cloud.work()
    assert host(cloud, server_id) == "host4"
    assert act(admin, server_id, {"revertResize": None}).status_code == 202
    cloud.work()
    assert (host(cloud, server_id), cloud.row(server_id).availability_zone) == ("host1", "nova")
    settled(cloud)


# -- aggregates


def test_hosts_for_some_projects_take_no_others(cloud, boot, stranger, api):
    aggregate("theirs", "host1", "host2", filter_tenant_id="x" * 32, filter_tenant_id2=PROJECT)
    aggregate("others", "host3", filter_tenant_id_9=f"{'y' * 32}, {'z' * 32}")
    assert host(cloud, boot()) in {"host1", "host2"}
    assert fault(stranger, boot(client=stranger)) == NONE.format("aggregates that are for other projects")


def test_a_zone_takes_the_servers_that_ask_for_it(cloud, boot, admin):
    aggregate("east", "host3", availability_zone="east")
    server_id = boot(availability_zone="east")
    assert host(cloud, server_id) == "host3"
    assert admin.get(f"/servers/{server_id}").json()["server"]["OS-EXT-AZ:availability_zone"] == "east"
    refused = admin.send("post", "/servers", cloud.body(availability_zone="west"))
    assert (refused.status_code, message(refused)) == (400, "The requested availability zone is not available")
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    assert host(cloud, server_id) == "host3"  # it is pinned to its zone
    aggregate("more east", "host1", availability_zone="east")
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    assert (host(cloud, server_id), cloud.row(server_id).availability_zone) == ("host1", "east")


# -- forced hosts


def test_a_forced_host_skips_preferences_and_still_needs_room(cloud, boot, admin, api):
    Image.objects.filter(pk=cloud.image.pk).update(properties={"hw_architecture": "arm64"})
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(disabled=True)
    assert host(cloud, boot(client=admin, availability_zone="nova:host1")) == "host1"
    asked = boot(client=admin, host="host3")  # asked for, not forced
    assert fault(admin, asked) == NONE.format("image properties")
    node(cloud, "host1", memory_mb=600)
    assert fault(admin, boot(client=admin, availability_zone="nova:host1")) == NONE.format("memory")
    settled(cloud)


# -- weighers


def test_the_host_with_most_to_spare_is_taken(cloud, boot, settings):
    node(cloud, "host2", memory_mb=1 << 20, vcpus=256, disk_gb=1 << 20)
    assert host(cloud, boot()) == "host2"
    settings.WEIGHT_MULTIPLIERS = dict.fromkeys(settings.WEIGHT_MULTIPLIERS, 0.0) | {"ram": -1.0}
    assert host(cloud, boot("b")) == "host1"
    assert host(cloud, boot("c")) == "host1"  # it fills up


def test_hosts_of_one_weight_are_taken_by_name(cloud, boot, settings):
    settings.WEIGHT_MULTIPLIERS = dict.fromkeys(settings.WEIGHT_MULTIPLIERS, 0.0)
    assert [host(cloud, boot(name)) for name in "abc"] == ["host1"] * 3


def test_an_aggregate_may_weigh_its_hosts_differently(cloud, boot):
    aggregate("last", "host1", ram_weight_multiplier="-5", cpu_weight_multiplier="x")
    node(cloud, "host1", memory_mb=1 << 20)
    assert host(cloud, boot()) == "host2"


def test_a_host_where_less_goes_on_is_better(cloud, api, hosts):
    def asked(name):
        assert api.send("post", "/servers", cloud.body(name)).status_code == 202
        cloud.schedule()
        for one in cloud.hosts:  # they all have the same room
            node(cloud, one, memory_mb_used=512, vcpus_used=1, disk_gb_used=1)
        return [step.host for _, step in cloud.queued()]

    assert asked("a") == ["host1"]
    assert sorted(asked("b")) == ["host1", "host2"]
    assert sorted(asked("c")) == ["host1", "host2", "host3"]


# -- what it costs


def test_more_hosts_are_no_more_questions(cloud, api, hosts):
    aggregate("fast", "host1", ssd="true")
    group = api.send("post", "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity"}})
    hints = {"os:scheduler_hints": {"group": group.json()["server_group"]["id"]}}

    def reads():
        assert api.send("post", "/servers", cloud.body() | hints).status_code == 202
        with counted() as seen:
            cloud.schedule()
        return sorted(sql for queries in seen.values() for sql, _ in queries if sql.startswith("SELECT"))

    reads()  # the next one has a neighbour
    few = reads()
    for number in range(30):
        cloud.add_host(f"more{number}", "cell1" if number % 2 else "cell2")
    assert len(reads()) <= len(few)
