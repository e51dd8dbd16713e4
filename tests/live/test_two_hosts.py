"""Operations of two hosts, with real workers, while either of them stops: they end, and the hosts end right after."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cloud.processes import gone
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.machine import fair

pytestmark = [pytest.mark.live, pytest.mark.independent, pytest.mark.timeout(300)]
LONG = 6  # seconds a guest is on its way
SLOTS = 2  # requests a host carries out at a time
SPAWNED, OUT, IN, OFF, ON = "spawned", "migrated out", "migrated in", "powered off by guest", "powered on"
SOURCE, DEST = "host1", "host3"
LIVE = {"os-migrateLive": {"host": DEST, "block_migration": "auto"}}


@pytest.fixture(scope="module")
def theatre() -> Iterator[Stage]:
    """Two cells with two simulated hosts each: host1 and host3, host2 and host4."""
    with Cloud("fake", hosts_per_cell=2, STILLWATER_HOST_SLOTS=str(SLOTS)) as cloud:
        yield Stage(cloud)


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """Everything runs; afterwards it is empty, and the books agree."""
    theatre.cloud.up()
    yield theatre
    theatre.cloud.up()
    theatre.empty()


def host_of(stage: Stage, uuid: str) -> str:
    """Where the API says it is."""
    return str(stage.show(uuid)["OS-EXT-SRV-ATTR:host"])


def on_its_way(stage: Stage, seconds: float = LONG) -> str:
    """A server that is just being handed over from host1 to host3."""
    (uuid,) = stage.boot(1, SOURCE, stage.image(migrate_out_delay=f"{seconds:g}"))
    assert stage.ask(uuid, LIVE) == 202
    during(stage, uuid, "migrate_out")
    return uuid


def during(stage: Stage, uuid: str, step: str) -> None:
    """Wait until that step runs."""
    where = f"server_id = '{uuid}' AND name = '{step}' AND state = 'running'"
    eventually(f"{step} runs", lambda: stage.steps("cell1", "id", where), 20, 0.02)


def ended_at(stage: Stage, uuid: str, host: str) -> float:
    """When the last step of a host ended (seconds since 1970)."""
    where = f"server_id = '{uuid}' AND host = '{host}' AND state = 'done'"
    moments = [datetime.fromisoformat(moment) for (moment,) in stage.steps("cell1", "finished_at", where)]
    return max(moments).replace(tzinfo=UTC).timestamp()


def is_draining(stage: Stage, host: str) -> bool:
    """As the API says; on a busy machine it may not hear of a cell in time, and says nothing."""
    return bool(stage.service(host).get("stillwater:drain", {}).get("state") == "draining")


def migration(stage: Stage, uuid: str) -> dict:
    """The newest of a server."""
    return dict(stage.call("GET", f"/os-migrations?instance_uuid={uuid}").json()["migrations"][0])


def has_moved(stage: Stage, uuid: str) -> None:
    """It runs at the destination, was never booted again, and nothing is left behind."""
    stage.wait(uuid, "ACTIVE")
    books.settled(stage.cloud)
    assert host_of(stage, uuid) == DEST
    assert stage.effects(uuid) == [SPAWNED, OUT, IN]
    books.check(stage.cloud)


@pytest.mark.parametrize("host", [SOURCE, DEST])
def test_a_drain_of_either_host_ends_right_after_its_last_step(stage, host):
    uuid = on_its_way(stage)

    stopping = stage.stop(host)
    ended = stopping.ended(LONG + 30)

    last = ended_at(stage, uuid, host)
    assert 0 < ended - last < fair(1), f"{host} stayed {ended - last:.1f} s after its last step"
    has_moved(stage, uuid)


def test_both_hosts_drain_at_once(stage):
    uuid = on_its_way(stage)
    stopping = [stage.stop(SOURCE), stage.stop(DEST)]
    for one in stopping:
        one.ended(LONG + 30)
    stage.cloud.up()
    has_moved(stage, uuid)


@pytest.mark.parametrize("host", [SOURCE, DEST])
def test_a_running_migration_is_aborted_within_two_seconds_while_a_host_drains(stage, host):
    uuid = on_its_way(stage, 60)
    stopping = stage.stop(host)
    eventually("it drains", lambda: is_draining(stage, host), 10, 0.05)

    begun = time.monotonic()
    found = migration(stage, uuid)
    assert stage.call("DELETE", f"/servers/{uuid}/migrations/{found['id']}").status_code == 202
    stage.wait(uuid, "ACTIVE", 10)
    took = time.monotonic() - begun
    stopping.ended(10)

    assert took < fair(2), f"the abort took {took:.1f} s"
    assert (host_of(stage, uuid), migration(stage, uuid)["status"]) == (SOURCE, "cancelled")
    assert stage.effects(uuid) == [SPAWNED]


def test_a_migration_that_would_outlast_the_drain_is_forced_through_and_the_host_ends(stage):
    name = "STILLWATER_DRAIN_LIVE_MIGRATIONS"
    stage.restart_with(SOURCE, DRAIN_LIVE_MIGRATIONS="force")
    try:
        uuid = on_its_way(stage, 250)
        pid = stage.cloud.daemon(SOURCE).pid()
        drain = {"stillwater:drain": {"exit": True, "timeout": 20}}
        assert stage.call("PUT", f"/os-services/{stage.service(SOURCE)['id']}", drain).status_code == 200
        assert gone([pid], 60), "the host waits for the migration"
        stage.cloud.up()
        has_moved(stage, uuid)
        ((said,),) = stage.steps("cell1", "details", f"server_id = '{uuid}' AND name = 'migrate_out'")
        assert "forced through: a drain of its hosts is over in" in said
    finally:
        stage.forget_setting(name)


def test_a_live_migration_nobody_has_begun_is_cancelled_by_a_drain(stage):
    slow = stage.boot(SLOTS, SOURCE, stage.image(reboot_hard_delay=str(LONG)))
    (uuid,) = stage.boot(1, SOURCE)
    for other in slow:
        assert stage.ask(other, {"reboot": {"type": "HARD"}}) == 202
        stage.running(other)
    assert stage.ask(uuid, LIVE) == 202
    waits = f"server_id = '{uuid}' AND name = 'check_source' AND state = 'queued'"
    eventually("its source is too busy to look at it", lambda: stage.steps("cell1", "id", waits), 20, 0.02)

    stopping = stage.stop(SOURCE)
    stage.wait(uuid, "ACTIVE", 10)

    assert stopping.running  # it goes on with what it has begun
    assert (host_of(stage, uuid), migration(stage, uuid)["status"]) == (SOURCE, "cancelled")
    ended = f"SELECT outcome, message FROM compute_instanceaction WHERE server_id = '{uuid}' ORDER BY id DESC LIMIT 1"
    assert stage.cloud.ask("cell1", ended) == [("host host1 drains", "Error")]
    stopping.ended(LONG + 30)
    assert stage.effects(uuid) == [SPAWNED]


def test_a_destination_that_is_away_has_a_server_when_it_is_back(stage):
    (uuid,) = stage.boot(1, SOURCE)
    stage.cloud.kill(DEST)  # and nobody has noticed yet
    assert stage.ask(uuid, LIVE) == 202
    eventually("it waits", lambda: migration(stage, uuid)["status"] == "queued", 20, 0.1)
    stage.cloud.up()
    has_moved(stage, uuid)


@pytest.mark.parametrize("sig", [signal.SIGKILL])
@pytest.mark.parametrize("name", [SOURCE, DEST, "conductor-cell1"])
def test_a_process_killed_while_the_guest_moves_changes_nothing(stage, name, sig):
    uuid = on_its_way(stage, 3)
    stage.cloud.kill(name, sig)
    time.sleep(1)
    stage.cloud.up()
    has_moved(stage, uuid)


def test_the_stock_client_moves_a_server_live(stage):
    (uuid,) = stage.boot(1, SOURCE, stage.image(migrate_out_delay="2"))
    stage.cloud.do("server", "migrate", "--live-migration", "--wait", uuid, admin=True)
    has_moved(stage, uuid)
    rows = stage.cloud.openstack("server", "migration", "list", "--server", uuid, admin=True)
    assert [(row["Status"], row["Source Compute"], row["Dest Compute"]) for row in rows] == [
        ("completed", SOURCE, DEST),
    ]  # fmt: skip


def test_the_stock_client_aborts_a_migration(stage):
    uuid = on_its_way(stage, 60)
    (shown,) = stage.cloud.openstack("server", "migration", "list", "--server", uuid, admin=True)
    assert (shown["Status"], shown["Source Compute"]) == ("running", SOURCE)
    stage.cloud.do("server", "migration", "abort", uuid, str(shown["Id"]), admin=True)
    stage.wait(uuid, "ACTIVE", 20)
    assert host_of(stage, uuid) == SOURCE


def test_the_stock_client_resizes_and_confirms(stage):
    (uuid,) = stage.boot(1, SOURCE)
    stage.cloud.do("server", "resize", "--flavor", "m1.tiny", "--wait", uuid, admin=True)
    assert stage.show(uuid)["status"] == "VERIFY_RESIZE"
    stage.cloud.do("server", "resize", "confirm", uuid, admin=True)
    stage.wait(uuid, "ACTIVE")
    books.settled(stage.cloud)
    assert (host_of(stage, uuid), stage.show(uuid)["flavor"]["original_name"]) == (DEST, "m1.tiny")
    assert stage.effects(uuid) == [SPAWNED, OFF, OUT, IN, ON]
    books.check(stage.cloud)


def test_the_stock_client_migrates_and_reverts(stage):
    (uuid,) = stage.boot(1, SOURCE)
    stage.cloud.do("server", "migrate", "--wait", uuid, admin=True)
    assert host_of(stage, uuid) == DEST
    stage.cloud.do("server", "migration", "revert", uuid, admin=True)
    stage.wait(uuid, "ACTIVE")
    books.settled(stage.cloud)
    assert host_of(stage, uuid) == SOURCE
    books.check(stage.cloud)


def test_a_resize_asked_for_while_the_source_is_stopped_is_done_once_after_its_start(stage):
    (uuid,) = stage.boot(1, SOURCE)
    stage.stop(SOURCE).ended(20)
    assert stage.ask(uuid, {"resize": {"flavorRef": "1"}}) == 202
    stage.cloud.up()
    stage.wait(uuid, "VERIFY_RESIZE")
    assert stage.ask(uuid, {"confirmResize": None}) == 204
    stage.wait(uuid, "ACTIVE")
    books.settled(stage.cloud)
    assert stage.effects(uuid) == [SPAWNED, OFF, OUT, IN, ON]
    books.check(stage.cloud)


@pytest.mark.parametrize("host", [SOURCE, DEST])
def test_a_resize_ends_while_a_host_of_it_drains(stage, host):
    (uuid,) = stage.boot(1, SOURCE, stage.image(migrate_out_delay=str(LONG)))
    assert stage.ask(uuid, {"resize": {"flavorRef": "1"}}) == 202
    during(stage, uuid, "migrate_out")
    stopping = stage.stop(host)
    ended = stopping.ended(LONG + 30)
    stage.wait(uuid, "VERIFY_RESIZE")
    assert 0 < ended - ended_at(stage, uuid, host) < fair(1)
    stage.cloud.up()
    assert stage.ask(uuid, {"revertResize": None}) == 202
    stage.wait(uuid, "ACTIVE")
    books.settled(stage.cloud)
    assert host_of(stage, uuid) == SOURCE
    books.check(stage.cloud)
