"""A host's two queues: requests that fill their slots leave the ops queue free."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator

import pytest

from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.machine import fair

SLOTS = 2


@pytest.fixture(scope="module")
def small_cloud() -> Iterator[Cloud]:
    """Hosts with two slots, which take 15 seconds for a hard reboot."""
    slow = {"STILLWATER_FAKE_FAULTS": "reboot_hard.delay=15"}
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


# -- long operations of the ops queue

LONG = 2  # at once
AWAY = 600  # seconds a guest is on its way


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Hosts with one slot for requests, which let two servers leave at once."""
    slots = {"STILLWATER_HOST_SLOTS": "1", "STILLWATER_LONG_SLOTS": str(LONG)}
    with Cloud("fake", hosts_per_cell=2, **slots) as cloud:
        yield Stage(cloud)


@pytest.mark.live
def test_a_console_answers_and_an_abort_is_undone_while_migrations_have_every_slot(stage):
    """Migrations took all threads of a host: its consoles answered 503, and an abort waited for the end of another."""
    servers = stage.boot(8, "host1", stage.image(migrate_out_delay=str(AWAY)))
    for uuid in servers:
        assert stage.ask(uuid, {"os-migrateLive": {"host": "host3", "block_migration": "auto"}}) == 202

    def migrates() -> dict[str, str]:
        rows = stage.steps("cell1", "server_id, state, details", "name = 'migrate_out'")
        return {server_id: state if state == "running" else details for server_id, state, details in rows}

    why = f"waits for one of the {LONG} slots for long operations of host1"
    expected = sorted(["running"] * LONG + [why] * (len(servers) - LONG))
    eventually("two leave and six wait", lambda: sorted(migrates().values()) == expected, 60)

    began = time.monotonic()
    answer = stage.call("POST", f"/servers/{servers[0]}/action", {"os-getConsoleOutput": {}})
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - began < fair(3)

    gone = next(uuid for uuid, state in migrates().items() if state == "running")
    (migration,) = stage.call("GET", f"/servers/{gone}/migrations").json()["migrations"]
    assert stage.call("DELETE", f"/servers/{gone}/migrations/{migration['id']}").status_code == 202
    eventually("it is undone", lambda: stage.show(gone)["OS-EXT-STS:task_state"] is None, 20)
    assert stage.show(gone)["OS-EXT-SRV-ATTR:host"] == "host1"
    eventually("the next one begins", lambda: list(migrates().values()).count("running") == LONG, 20)
    for uuid in servers:
        assert stage.call("DELETE", f"/servers/{uuid}").status_code == 204
    eventually("all is done", lambda: not stage.steps("cell1", "id", "state IN ('queued', 'running', 'waiting')"), 60)
