"""What the databases, the hypervisors and the quota of a cloud say, and whether they agree.

books.settled(cloud)   wait until nothing is in progress any more
books.check(cloud)     every server once, where its row says; claims and quota are those of living servers
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.state import CELLS
from tests.live.cloud import Cloud, eventually


@dataclass(frozen=True, slots=True)
class Row:
    """A living server as its cell knows it."""

    uuid: str
    name: str
    cell: str
    host: str
    vm_state: str
    task_state: str | None
    fault: str


def rows(cloud: Cloud) -> list[Row]:
    """Every living server of every cell, cell0's among them."""
    columns = "uuid, display_name, host, vm_state, task_state, coalesce(CAST(fault AS text), '')"
    found = []
    for cell in ("cell0", *CELLS):
        for row in cloud.ask(cell, f"SELECT {columns} FROM compute_instance WHERE NOT deleted"):
            uuid, name, host, vm_state, task_state, fault = row
            found.append(Row(uuid, name, cell, host, vm_state, task_state, fault))
    return found


def unfinished(cloud: Cloud) -> list[str]:
    """What is still going on, in words; nothing when the cloud is at rest."""
    requests = cloud.ask("global", "SELECT server_id FROM cells_buildrequest")
    left = [f"build request of {uuid}" for (uuid,) in requests]
    for row in rows(cloud):
        if row.vm_state == "building" or row.task_state:
            left.append(f"{row.name} on {row.host or row.cell} is {row.vm_state}/{row.task_state}")
    for cell in CELLS:
        steps = "SELECT name, server_id, host, state FROM compute_step WHERE state IN ('queued', 'running', 'waiting')"
        for name, uuid, host, state in cloud.ask(cell, steps):
            left.append(f"step {name} of {uuid} on {host or cell} is {state}")
    return left


def settled(cloud: Cloud, seconds: float = 120) -> list[Row]:
    """The living servers, once nothing is in progress; AssertionError that names what hangs."""
    try:
        eventually("nothing in progress", lambda: not unfinished(cloud), seconds)
    except AssertionError as hangs:
        raise AssertionError(f"{hangs}: {'; '.join(unfinished(cloud))} ({cloud.directory})") from None
    return rows(cloud)


def check(cloud: Cloud) -> list[Row]:
    """Raises AssertionError where two of the books differ; the living servers."""
    living = rows(cloud)
    for row in living:
        assert row.vm_state != "error" or row.fault, f"{row.name} is in ERROR and nobody says why"
    twice = [uuid for uuid, count in Counter(row.uuid for row in living).items() if count > 1]
    assert not twice, f"in two cells: {twice}"
    nowhere = ("error", "building", "shelved_offloaded")
    expected = {(row.host, row.uuid) for row in living if row.vm_state not in nowhere}
    on_hosts = {(host, uuid) for host in cloud.state.hosts for uuid in guests(cloud, host)}
    assert on_hosts == expected, f"on hosts: {on_hosts - expected}, on record: {expected - on_hosts}"
    placed, claimed = {uuid for _, uuid in expected}, claims(cloud)
    assert claimed == placed, f"only claims: {claimed - placed}, only servers: {placed - claimed}"
    _check_nodes(cloud)
    _check_quota(cloud, len(living))
    return living


def guests(cloud: Cloud, host: str) -> set[str]:
    """Every guest a host's hypervisor knows, running or not."""
    if cloud.driver == "libvirt":
        return set(cloud.virsh(host, "list", "--all", "--uuid").split())
    with _open(cloud.state.path("hosts", host, "state", "guests.sqlite3")) as database:
        return {uuid for (uuid,) in database.execute("SELECT uuid FROM guests")}


def claims(cloud: Cloud) -> set[str]:
    """Servers that hold room on a node."""
    held = "SELECT server_id FROM compute_allocation"
    return {uuid for cell in CELLS for (uuid,) in cloud.ask(cell, held)}


def _check_nodes(cloud: Cloud) -> None:
    """What a node says is used is the sum of what is claimed of it."""
    summed = """
        SELECT n.host, n.vcpus_used, n.memory_mb_used, n.disk_gb_used, coalesce(sum(a.vcpus), 0),
               coalesce(sum(a.memory_mb), 0), coalesce(sum(a.disk_gb), 0)
        FROM compute_computenode n LEFT JOIN compute_allocation a ON a.node_id = n.id GROUP BY n.id"""
    for cell in CELLS:
        for host, *numbers in cloud.ask(cell, summed):
            assert numbers[:3] == numbers[3:], f"{host}: used {numbers[:3]}, claimed {numbers[3:]}"


def _check_quota(cloud: Cloud, living: int) -> None:
    """The project is charged for what lives; ERROR counts, too."""
    used = "SELECT count(*) FROM cells_instancemapping WHERE queued_for_delete IS NOT TRUE"
    ((count,),) = cloud.ask("global", used)
    assert count == living, f"quota counts {count} servers, {living} live"


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file, timeout=30)
    try:
        yield connection
    finally:
        connection.close()

