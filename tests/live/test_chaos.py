"""Processes are killed while servers are booted and deleted; afterwards all the books agree."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from redis import Redis

from deploy.local.state import DOMAINS
from tests.live import books
from tests.live.burst import Burst
from tests.live.cloud import Cloud, eventually
from tests.machine import fair

pytestmark = [pytest.mark.chaos, pytest.mark.independent, pytest.mark.timeout(400)]
# images whose guests take their time, and for what
SLOW, STICKY = "chaos-slow", "chaos-sticky"
FAULTS = {
    SLOW: {"fake_spawn_delay": "4"},
    STICKY: {"fake_destroy_delay": "5", "fake_snapshot_delay": "5", "fake_reboot_hard_delay": "5"},
}
WORKERS = ("scheduler", "conductor-cell1", "host1", "api")


@pytest.fixture(scope="module")
def roomy(fake_cloud: Cloud) -> Cloud:
    """The simulated cloud with a quota that is in nobody's way, and images whose guests take their time."""
    limits = ("--instances", "100", "--cores", "200", "--ram", "102400")
    fake_cloud.do("quota", "set", *limits, "demo", admin=True)
    images = fake_cloud.sdk(admin=True).image
    for name, faults in FAULTS.items():
        if images.find_image(name) is None:
            kind = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
            images.create_image(name, data=b"\0" * (1 << 20), validate_checksum=False, **kind, **faults)
    return fake_cloud


@pytest.fixture
def chaos(roomy: Cloud) -> Iterator[Cloud]:
    """It runs before and after, and is empty afterwards."""
    roomy.up()
    yield roomy
    roomy.up()
    empty(roomy)


@pytest.mark.parametrize("name", [*WORKERS, *(f"redis-{domain}" for domain in DOMAINS)])
def test_a_process_killed_during_boots_and_deletes_costs_no_server(chaos, name):
    burst = Burst(chaos, f"killed-{name}")
    burst.begin(10)
    early = burst.so_far()[:2]
    chaos.kill(name, signal.SIGKILL)
    deleted = burst.delete(early)
    accepted = burst.accepted()
    assert name == "api" or len(accepted) == 10

    chaos.up()

    all_end(chaos, accepted, deleted)


def test_every_process_killed_at_once_costs_no_server(chaos):
    burst = Burst(chaos, "blackout")
    burst.begin(8)
    with ThreadPoolExecutor(len(chaos.pids())) as pool:
        list(pool.map(chaos.kill, chaos.pids()))
    accepted = burst.accepted()

    chaos.up()

    all_end(chaos, accepted, [])


def test_an_api_killed_in_the_middle_of_an_upload_is_started_again_at_once(chaos):
    """Its worker finishes the upload as an orphan, and held the port: "in use by another program"."""
    sdk = chaos.sdk()
    image = sdk.image.create_image("endless", disk_format="raw", container_format="bare")
    stop = threading.Event()

    def drops() -> Iterator[bytes]:
        while not stop.is_set():
            yield b"\0" * 1024
            time.sleep(0.1)

    url, headers = f"{chaos.url}/image/v2/images/{image.id}/file", {"X-Auth-Token": sdk.auth_token}
    headers["Content-Type"] = "application/octet-stream"
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(requests.put, url, data=drops(), headers=headers, timeout=60)
        eventually("the upload runs", lambda: sdk.image.get_image(image.id).status == "saving", 30)
        chaos.kill("api", signal.SIGKILL)
        try:
            chaos.up()
        finally:
            stop.set()
        assert isinstance(upload.exception(60), requests.RequestException)
    sdk.image.delete_image(image.id)


def test_both_conductors_and_both_hosts_killed_together_lose_nothing(chaos):
    burst = Burst(chaos, "pairs", SLOW)
    burst.begin(8)
    names = ("conductor-cell1", "conductor-cell2", "host1", "host2")
    eventually("spawns on both hosts", lambda: spawning(chaos) >= {"host1", "host2"}, 30)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(chaos.kill, names))
    deleted = burst.delete(burst.so_far()[:2])

    chaos.up()

    accepted = burst.accepted()
    assert len(deleted) == 2
    assert {row.vm_state for row in all_end(chaos, accepted, deleted)} == {"active"}


def test_a_host_that_is_stopped_finishes_its_spawns_first(chaos):
    burst = Burst(chaos, "graceful", SLOW)
    burst.begin(6)
    eventually("a spawn on host1", lambda: "host1" in spawning(chaos), 30)
    chaos.kill("host1", signal.SIGTERM)
    assert "host1" not in spawning(chaos), "it ended with a step in its hands"

    chaos.up()

    living = all_end(chaos, burst.accepted(), [])
    assert {row.vm_state for row in living} == {"active"}


def test_a_host_killed_during_a_spawn_carries_on_where_it_was(chaos):
    burst = Burst(chaos, "continued", SLOW)
    burst.begin(4)
    eventually("a spawn on host1", lambda: "host1" in spawning(chaos), 30)
    chaos.kill("host1", signal.SIGKILL)
    assert "host1" in spawning(chaos)

    chaos.up()

    living = all_end(chaos, burst.accepted(), [])
    assert {row.vm_state for row in living} == {"active"}


def test_a_host_killed_in_the_middle_of_stops_snapshots_and_deletes_carries_on(chaos):
    burst = Burst(chaos, "halfway", STICKY)
    burst.begin(8)
    ids = burst.accepted()
    books.settled(chaos)
    compute = chaos.sdk().compute
    for uuid in ids[:2]:
        compute.stop_server(uuid)
    images = [compute.create_server_image(uuid, f"copy-{uuid}") for uuid in ids[2:4]]
    for uuid in ids[4:6]:
        compute.reboot_server(uuid, "HARD")
    deleted = burst.delete(ids[6:])
    # which host does which of them is the scheduler's choice
    eventually("two kinds at once", lambda: len({*doing(chaos, "host1"), *doing(chaos, "host2")}) >= 2, 30, 0.05)
    for host in ("host1", "host2"):
        chaos.kill(host, signal.SIGKILL)

    chaos.up()

    living = {row.uuid: row.vm_state for row in all_end(chaos, ids, deleted, {"stopped"})}
    assert [living.get(uuid) for uuid in ids] == ["stopped"] * 2 + ["active"] * 4 + [None] * 2
    for image in images:
        assert chaos.sdk().image.get_image(image.id).status == "active"
        chaos.sdk().image.delete_image(image.id)


def test_servers_deleted_at_any_moment_of_their_boot_leave_nothing(chaos):
    quick, slow = Burst(chaos, "early"), Burst(chaos, "late", SLOW)
    quick.begin(10)
    slow.begin(6)
    deleted: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        while len(deleted) < 16:
            fresh = [uuid for uuid in quick.so_far() + slow.so_far() if uuid not in deleted]
            deleted += fresh
            list(pool.map(lambda uuid: quick.delete([uuid]), fresh))
    assert all_end(chaos, quick.accepted() + slow.accepted(), deleted) == []


def test_brokers_that_forget_everything_cost_only_time(chaos):
    burst = Burst(chaos, "wiped")
    burst.begin(10)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for domain in DOMAINS:
            wipe(chaos, domain)
    accepted = burst.accepted()
    assert len(accepted) == 10

    living = all_end(chaos, accepted, [])
    assert {row.vm_state for row in living} == {"active"}


def test_workers_find_their_broker_again_when_it_is_restarted(chaos):
    """Nobody restarts the workers: they reconnect, and the next boot is as quick as any."""
    before = chaos.pids()
    for domain in DOMAINS:
        chaos.kill(f"redis-{domain}", signal.SIGKILL)
    chaos.up()
    after = chaos.pids()
    new = {name for name in before if before[name] != after[name]}
    assert new == {f"redis-{domain}" for domain in DOMAINS}

    burst = Burst(chaos, "reconnected")
    burst.begin(4)

    living = all_end(chaos, burst.accepted(), [], seconds=40)
    assert {row.vm_state for row in living} == {"active"}
    for _ in range(2):  # by messages, not by the relay
        began = time.monotonic()
        again = Burst(chaos, "quick")
        again.begin(1)
        books.settled(chaos, 20)
        took = time.monotonic() - began
    assert took < fair(3.5), f"a boot takes {took:.1f} s: its messages are not heard"


@pytest.mark.live
def test_libvirtd_killed_during_boots_costs_no_server(cloud):
    burst = Burst(cloud, "libvirtd")
    burst.begin(3)
    for host in ("host1", "host2"):
        cloud.libvirtd(host).stop(signal.SIGKILL)
    cloud.up()

    all_end(cloud, burst.accepted(), [])
    empty(cloud)


@pytest.mark.live
def test_a_guest_whose_process_dies_is_shown_as_shut_off(cloud):
    burst = Burst(cloud, "murdered")
    burst.begin(1)
    books.settled(cloud, 60)
    (uuid,) = burst.accepted()
    row = next(row for row in books.rows(cloud) if row.uuid == uuid)
    assert row.vm_state == "active"
    (pid,) = cloud.libvirtd(row.host).qemu_pids()
    os.kill(pid, signal.SIGKILL)

    eventually("SHUTOFF", lambda: cloud.sdk().compute.get_server(uuid).status == "SHUTOFF", 15)
    actions = [action.action for action in cloud.sdk().compute.server_actions(uuid)]
    assert actions == ["stop", "create"]
    burst.delete([uuid])
    books.settled(cloud, 60)


def all_end(
    cloud: Cloud, accepted: list[str], deleted: list[str], also: set[str] | None = None, seconds: float = 120
) -> list[books.Row]:
    """Wait until nothing is in progress, and compare all the books; the living servers.

    Those that were accepted and not deleted are active or, with a reason, in error; or `also` something else.
    """
    books.settled(cloud, seconds)
    living = books.check(cloud)
    states = {row.uuid: row.vm_state for row in living}
    ends = {states.get(uuid) for uuid in accepted if uuid not in deleted}
    assert ends <= {"active", "error"} | (also or set()), states
    assert not set(deleted) & set(states), "deleted, and still there"
    return living


def empty(cloud: Cloud) -> None:
    """Delete every server; nothing of them is left anywhere."""
    burst = Burst(cloud, "none")
    ids = [row.uuid for row in books.settled(cloud)]
    assert len(burst.delete(ids)) == len(ids)
    assert books.settled(cloud) == []
    books.check(cloud)


def spawning(cloud: Cloud) -> set[str]:
    """Hosts that are in the middle of a build, as the journal says."""
    return {host for host in cloud.state.hosts if "build" in doing(cloud, host)}


def doing(cloud: Cloud, host: str) -> set[str]:
    """Names of the steps a host runs now."""
    database = sqlite3.connect(cloud.state.path(f"{cloud.state.hosts[host]}.sqlite3"), timeout=30)
    question = "SELECT DISTINCT name FROM compute_step WHERE host = ? AND state = 'running'"
    found = {name for (name,) in database.execute(question, (host,))}
    database.close()
    return found


def wipe(cloud: Cloud, domain: str) -> None:
    """Everything a Redis knows is gone."""
    with Redis.from_url(cloud.state.broker_url(domain)) as client:
        client.flushall()
