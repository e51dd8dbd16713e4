"""A host's two lanes: requests that fill their slots leave the ops lane free."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from tests.live.cloud import Cloud, eventually

SLOTS = 2


@pytest.fixture(scope="module")
def small_cloud() -> Iterator[Cloud]:
    """Hosts with two slots, which take 15 seconds for a hard reboot."""
    slow = {"STILLWATER_FAKE_ORDERS": "reboot_hard.delay=15"}
    cloud = Cloud("fake", STILLWATER_HOST_SLOTS=str(SLOTS), **slow)
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.end()


def steps_of_reboots(cloud: Cloud, cell: str) -> dict[str, int]:
    """How many reboots of a cell run, and how many wait."""
    with sqlite3.connect(cloud.directory / f"{cell}.sqlite3") as database:
        found = database.execute("SELECT state, count(*) FROM compute_step WHERE name = 'reboot' GROUP BY state")
        return dict(found.fetchall())


@pytest.mark.live
def test_a_console_answers_while_slow_reboots_fill_the_host(small_cloud):
    member, admin = small_cloud.sdk(), small_cloud.sdk(admin=True)
    image, flavor = member.image.find_image("micro"), member.compute.find_flavor("m1.nano")
    made = [
        member.compute.create_server(name=f"s{n}", image_id=image.id, flavor_id=flavor.id, networks="none")
        for n in range(8)
    ]
    servers = [member.compute.wait_for_server(server, wait=60) for server in made]
    hosts = {server.id: admin.compute.get_server(server.id).compute_host for server in servers}
    busiest = max(set(hosts.values()), key=list(hosts.values()).count)
    full = [server for server in servers if hosts[server.id] == busiest]
    assert len(full) > SLOTS

    for server in full:
        member.compute.reboot_server(server, "HARD")

    cell = busiest.replace("host", "cell")
    expected = {"running": SLOTS, "queued": len(full) - SLOTS}
    eventually("the slots are full", lambda: steps_of_reboots(small_cloud, cell) == expected, seconds=10)
    output = member.compute.get_server_console_output(full[-1])
    assert "STILLWATER READY" in output["output"]
    assert steps_of_reboots(small_cloud, cell) == expected  # the console waited for nobody
