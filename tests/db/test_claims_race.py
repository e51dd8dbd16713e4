"""Room on a host under parallel claims: one conditional UPDATE settles it."""

from __future__ import annotations

import random
from dataclasses import replace

from django.db import transaction

from cells.context import target_cell
from compute.models import Allocation, ComputeNode
from compute.placement import claims, inventory
from tests.flow import machines
from tests.flow.stories import at_once


def _claim(host, server_id):
    with target_cell(host.cell) as alias:
        node = ComputeNode.objects.get(host=host.name)
        with transaction.atomic(using=alias):
            return claims.claim(server_id, node, vcpus=1, memory_mb=512, disk_gb=1)


def _used(host):
    with target_cell(host.cell):
        node = ComputeNode.objects.get(host=host.name)
        return node.vcpus_used, node.memory_mb_used, node.disk_gb_used, Allocation.objects.count()


def test_forty_parallel_claims_on_room_for_twenty_are_twenty(cloud):
    host = cloud.add_host("small", "cell1", memory_mb=20 * 512)
    won = at_once(40, lambda n: _claim(host, f"server-{n}"))
    assert (won.count(True), won.count(False)) == (20, 20)
    assert _used(host) == (20, 20 * 512, 20, 20)


def test_claims_and_releases_in_any_order_add_up(cloud):
    host = cloud.add_host("small", "cell1", memory_mb=20 * 512)
    for number in range(20):
        assert _claim(host, f"old-{number}")

    def work(number):
        if number % 2:
            return _claim(host, f"new-{number}")
        with target_cell(host.cell):
            claims.release(f"old-{random.Random(number).randrange(5)}")  # some of them more than once
        return None

    taken = at_once(40, work).count(True)
    vcpus, memory, disk, rows = _used(host)
    assert vcpus == disk == rows <= 20
    assert memory == vcpus * 512
    assert rows >= taken


def test_a_server_that_claims_twice_holds_its_room_once(cloud):
    host = cloud.hosts["host1"]
    assert _claim(host, "a")
    assert _claim(host, "a")
    assert _used(host) == (1, 512, 1, 1)


def _take(host, name, server_id):
    with target_cell(host.cell) as alias:
        node = ComputeNode.objects.get(hypervisor_hostname=name)
        with transaction.atomic(using=alias):
            return claims.claim(server_id, node, vcpus=1, memory_mb=512, disk_gb=1)


def test_of_forty_servers_that_want_one_machine_one_gets_it(cloud):
    host = machines.add(cloud, 1)
    (name,) = machines.nodes(host)
    won = at_once(40, lambda n: _take(host, name, f"server-{n}"))
    assert won.count(True) == 1
    assert [len(found) for found in machines.held(host).values()] == [1]
    assert machines.nodes(host)[name].vcpus_used == 8


def test_a_machine_whose_size_nobody_knows_is_one_servers_too(cloud):
    host = machines.add(cloud, 1)
    (name,) = machines.nodes(host)
    with target_cell(host.cell):
        ComputeNode.objects.filter(hypervisor_hostname=name).update(vcpus=0, memory_mb=0, disk_gb=0)
    assert at_once(20, lambda n: _take(host, name, f"server-{n}")).count(True) == 1


def test_a_machine_that_vanishes_while_it_is_claimed_is_gone_or_held(cloud):
    host = machines.add(cloud, 20)
    names = sorted(machines.nodes(host))

    def work(number):
        if number % 4 == 0:
            with target_cell(host.cell):
                inventory.record(host.name, [])
            return None
        try:
            return _take(host, names[number // 2], f"server-{number}") and names[number // 2]
        except ComputeNode.DoesNotExist:
            return None

    taken = {name for name in at_once(40, work) if name}
    held = machines.held(host)
    assert set(held) == taken == set(machines.nodes(host))
    assert all(len(servers) == 1 for servers in held.values())
    assert {node.out_of_use for node in machines.nodes(host).values()} <= {inventory.GONE}


def test_reports_of_a_host_that_come_at_once_do_not_wait_for_each_other_for_good(cloud):
    """Its worker of before still drains, say, when the next one starts. Two of them ended in a deadlock."""
    host = machines.add(cloud, 60)
    reported = host.driver.nodes()

    def work(number):
        said = [replace(one, memory_mb=4096 + number) for one in reported]
        with target_cell(host.cell):
            for part in (said, said[::-1], said[30:]):
                inventory.record(host.name, part)

    at_once(8, work)
    assert all(node.memory_mb >= 4096 for node in machines.nodes(host).values())
    assert len(machines.nodes(host)) == 30, "the last report has so many"
