"""Server groups under parallel boots and moves: two that are to be apart never meet, two that are to be together do."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from django.db import transaction

from cells.context import target_cell
from cells.models import CELL0
from compute.builds import build
from compute.models import Allocation, ComputeNode, Instance, ServerGroup, ServerGroupMember
from compute.placement import claims, server_groups
from tests.flow.stories import at_once, settled


@pytest.fixture
def group(api):
    """Make a group; its record."""

    def made(policy, **rules):
        order = {"name": "g", "policy": policy} | ({"rules": rules} if rules else {})
        answer = api.send("post", "/os-server-groups", {"server_group": order})
        return ServerGroup.objects.get(uuid=answer.json()["server_group"]["id"])

    return made


@pytest.fixture
def asked(api, cloud):
    """Servers of a group that nobody has placed yet."""

    def made(group, count):
        body = cloud.body(min_count=count, max_count=count) | {"os:scheduler_hints": {"group": group.uuid}}
        assert api.send("post", "/servers", body).status_code == 202
        members = ServerGroupMember.objects.filter(group=group).order_by("-pk")[:count]
        return [member.server_id for member in members]

    return made


def claim(host, server_id, group):
    """As a scheduler or a conductor that has chosen the host already, by what it saw a while ago."""
    seen = server_groups.of_server(server_id)
    if not server_groups.take_home(seen, server_id, host.name, lambda _: True):
        return False
    with target_cell(host.cell) as alias:
        node = ComputeNode.objects.get(host=host.name)
        with transaction.atomic(using=alias):
            return claims.claim(server_id, node, 1, 512, 1, seen)


def members(group, count):
    rows = [ServerGroupMember(group=group, server_id=f"server-{n}") for n in range(count)]
    return [row.server_id for row in ServerGroupMember.objects.bulk_create(rows)]


def placed(cloud):
    """How many servers hold room on each host, by the claims and by the servers' records: they say the same."""
    claimed, recorded = Counter(), Counter()
    for cell in cloud.cells.values():
        with target_cell(cell):
            claimed.update(Allocation.objects.values_list("node__host", flat=True))
            if cell.id != CELL0:
                recorded.update(Instance.objects.values_list("host", flat=True))
    assert claimed == recorded
    return dict(claimed)


def add_up(cloud):
    """What is claimed of each node is the sum of its claims."""
    for cell in cloud.cells.values():
        with target_cell(cell):
            for node in ComputeNode.objects.all():
                assert node.vcpus_used == node.allocations.count()
                assert node.memory_mb_used == 512 * node.allocations.count()


# -- whole boots


def test_eight_schedulers_place_anti_affine_servers_on_four_hosts(cloud, group, asked):
    cloud.add_host("host3", "cell1")
    cloud.add_host("host4", "cell2")
    servers = asked(group("anti-affinity"), 8)
    at_once(8, lambda n: build.place(servers[n]))
    assert placed(cloud) == {"host1": 1, "host2": 1, "host3": 1, "host4": 1}
    cloud.work()
    assert sorted(cloud.row(one).vm_state for one in servers) == ["active"] * 4 + ["error"] * 4
    add_up(cloud)
    settled(cloud)


def test_two_per_host_are_two_per_host(cloud, group, asked):
    servers = asked(group("anti-affinity", max_server_per_host=2), 7)
    at_once(7, lambda n: build.place(servers[n]))
    assert placed(cloud) == {"host1": 2, "host2": 2}


def test_eight_schedulers_place_affine_servers_on_one_host(cloud, group, asked):
    cloud.add_host("host3", "cell1")
    servers = asked(group("affinity"), 8)
    at_once(8, lambda n: build.place(servers[n]))
    assert list(placed(cloud).values()) == [8]
    cloud.work()
    assert {cloud.row(one).vm_state for one in servers} == {"active"}
    add_up(cloud)
    settled(cloud)


def test_a_home_with_little_room_takes_what_it_can(cloud, group, asked):
    for host in cloud.hosts.values():
        with target_cell(host.cell):
            ComputeNode.objects.filter(host=host.name).update(memory_mb=3 * 512)
    servers = asked(group("affinity"), 8)
    at_once(8, lambda n: build.place(servers[n]))
    assert list(placed(cloud).values()) == [3]
    add_up(cloud)


# -- bare claims: everybody has made up their mind before


@pytest.mark.parametrize("round_", range(5))
def test_of_many_claims_of_one_host_one_is_let_in(round_, cloud, group):
    apart = group("anti-affinity")
    servers, host = members(apart, 12), cloud.hosts["host1"]
    won = at_once(12, lambda n: claim(host, servers[n], apart))
    assert won.count(True) == 1
    add_up(cloud)


@pytest.mark.parametrize("round_", range(5))
def test_first_members_that_want_different_hosts_end_on_one(round_, cloud, group):
    hosts = [cloud.hosts["host1"], cloud.hosts["host2"], cloud.add_host("host3", "cell1")]
    together = group("affinity")
    servers = members(together, 12)
    at_once(12, lambda n: claim(hosts[n % 3], servers[n], together))
    homes = set()
    for cell in cloud.cells.values():
        with target_cell(cell):
            homes |= set(Allocation.objects.values_list("node__host", flat=True))
    assert len(homes) == 1
    assert ServerGroup.objects.get(pk=together.pk).host in homes
    add_up(cloud)


@pytest.mark.parametrize("round_", range(5))
def test_a_deserted_home_is_taken_over_by_one_host_while_others_come_to_it(round_, cloud, group):
    hosts = [cloud.hosts["host1"], cloud.hosts["host2"], cloud.add_host("host3", "cell1")]
    together = group("affinity")
    first, *servers = members(together, 13)
    assert claim(hosts[0], first, together)
    with target_cell(hosts[0].cell):
        claims.release(first)  # the home is host1 still, and nobody is there
    won = at_once(12, lambda n: claim(hosts[n % 3], servers[n], together))
    assert won.count(True) >= 1
    homes = set()
    for cell in cloud.cells.values():
        with target_cell(cell):
            homes |= set(Allocation.objects.values_list("node__host", flat=True))
    assert homes == {ServerGroup.objects.get(pk=together.pk).host}
    add_up(cloud)


def test_members_that_come_and_go_are_never_on_two_hosts(cloud, group):
    """Boots, deletes and moves of many, each by whoever comes along; a watcher looks all the time."""
    hosts = [cloud.hosts["host1"], cloud.add_host("host3", "cell1"), cloud.add_host("host4", "cell1")]
    together = group("affinity")
    servers, split, over = members(together, 6), [], threading.Event()

    def work(number):
        if number == 6:
            while not over.wait(0.005):
                with target_cell(hosts[0].cell):
                    held = set(Allocation.objects.values_list("node__host", flat=True))
                if len(held) > 1:
                    split.append(held)
            return 0
        came = 0
        for turn in range(15):
            came += claim(hosts[(number + turn) % 3], servers[number], together)
            with target_cell(hosts[0].cell):
                claims.release(servers[number])
        done.append(number)
        if len(done) == 6:
            over.set()
        return came

    done: list[int] = []
    came = at_once(7, work)
    assert split == []
    assert sum(came) > 0
    add_up(cloud)


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity"])
def test_a_member_that_joined_after_the_look_is_seen_by_the_claim(policy, cloud, group):
    made, host1, host2 = group(policy), cloud.hosts["host1"], cloud.hosts["host2"]
    early, late = members(made, 1)[0], "late"
    seen = server_groups.of_server(early)
    ServerGroupMember.objects.create(group=made, server_id=late)
    assert claim(host1, late, made)

    wrong = host1 if policy == "anti-affinity" else host2
    assert not server_groups.take_home(seen, early, host2.name, lambda _: True) or policy == "anti-affinity"
    with target_cell(wrong.cell) as alias:
        node = ComputeNode.objects.get(host=wrong.name)
        with transaction.atomic(using=alias):
            assert not claims.claim(early, node, 1, 512, 1, seen)
    add_up(cloud)
