"""Aggregates and server groups in the hands of the stock client, and servers that go where they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.live.cloud import ClientFailed, Cloud

NEW = ("--os-compute-api-version", "2.96")
pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture
def boot(fake_cloud: Cloud) -> Iterator[Callable[..., dict]]:
    """Boot a server and wait for it; they are gone afterwards."""
    names: list[str] = []

    def booted(name: str, *words: str) -> dict:
        names.append(name)
        sizes = ("--image", "micro", "--flavor", "m1.nano", "--nic", "none", "--wait")
        return fake_cloud.openstack(*NEW, "server", "create", *sizes, *words, name, admin=True)

    yield booted
    fake_cloud.do("server", "delete", "--wait", *names, admin=True)


@pytest.fixture
def aggregate(fake_cloud: Cloud) -> Iterator[str]:
    """An aggregate that is a zone; it is gone afterwards."""
    zone = ("--zone", "scheduling-zone", "--property", "ssd=true")
    made = fake_cloud.openstack("aggregate", "create", *zone, "scheduling", admin=True)
    assert (made["name"], made["availability_zone"]) == ("scheduling", "scheduling-zone")
    yield made["name"]
    for host in fake_cloud.openstack("aggregate", "show", "scheduling", admin=True)["hosts"]:
        fake_cloud.do("aggregate", "remove", "host", "scheduling", host, admin=True)
    fake_cloud.do("aggregate", "delete", "scheduling", admin=True)
    assert not fake_cloud.openstack("aggregate", "list", admin=True)


def test_an_aggregate_from_its_birth_to_its_end(fake_cloud, aggregate):
    fake_cloud.do("aggregate", "add", "host", aggregate, "host2", admin=True)
    fake_cloud.do("aggregate", "set", "--property", "rack=7", aggregate, admin=True)
    shown = fake_cloud.openstack("aggregate", "show", aggregate, admin=True)
    assert (shown["hosts"], shown["properties"]) == (["host2"], {"ssd": "true", "rack": "7"})
    (row,) = fake_cloud.openstack("aggregate", "list", admin=True)
    assert (row["Name"], row["Availability Zone"]) == ("scheduling", "scheduling-zone")
    zones = {row["Zone Name"]: row["Zone Status"] for row in fake_cloud.openstack("availability", "zone", "list")}
    assert zones["scheduling-zone"] == "available"
    services = fake_cloud.openstack("compute", "service", "list", "--service", "nova-compute", admin=True)
    assert {row["Host"]: row["Zone"] for row in services}["host2"] == "scheduling-zone"
    with pytest.raises(ClientFailed, match="Host aggregate is not empty"):
        fake_cloud.do("aggregate", "delete", aggregate, admin=True)
    assert fake_cloud.openstack("hypervisor", "show", "host2", admin=True)["aggregates"] == ["scheduling"]


def test_anti_affine_servers_are_on_two_hosts_and_there_is_no_third(fake_cloud, boot):
    words = ("--policy", "anti-affinity", "scheduling-apart")
    made = fake_cloud.openstack("server", "group", "create", *words, admin=True)
    assert (made["name"], made["policy"]) == ("scheduling-apart", "anti-affinity")
    hint = ("--hint", f"group={made['id']}")
    servers = [boot(f"scheduling-{number}", *hint) for number in (1, 2)]
    assert {one["OS-EXT-SRV-ATTR:host"] for one in servers} == {"host1", "host2"}
    assert [one["server_groups"] for one in servers] == [[made["id"]]] * 2
    with pytest.raises(ClientFailed, match="Error creating server"):
        boot("scheduling-3", *hint)
    third = fake_cloud.openstack(*NEW, "server", "show", "scheduling-3", admin=True)
    assert third["fault"]["message"].endswith("No host passed the filter for: server group anti-affinity.")
    (row,) = fake_cloud.openstack("server", "group", "list", "--long", admin=True)
    assert {one["id"] for one in (*servers, third)} == set(row["Members"])
    shown = fake_cloud.openstack("server", "group", "show", "scheduling-apart", admin=True)
    assert (shown["id"], set(shown["members"])) == (made["id"], set(row["Members"]))
    fake_cloud.do("server", "group", "delete", "scheduling-apart", admin=True)
    assert not fake_cloud.openstack("server", "group", "list", admin=True)
