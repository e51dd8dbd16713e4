"""Real guests move between two libvirtd while they run, and whoever works for them stops, is killed or drains."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.state import ROOT
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.machine import fair

pytestmark = [pytest.mark.live, pytest.mark.independent, pytest.mark.timeout(300)]
SOURCE, DEST = "host1", "host3"
LIVE = {"os-migrateLive": {"host": DEST, "block_migration": "auto"}}
ADMIN = {"admin": True}


@pytest.fixture(scope="module")
def theatre() -> Iterator[Stage]:
    """At 1 MiB/s a guest that keeps changing its memory is on its way for ever."""
    cloud = Cloud("libvirt", hosts_per_cell=2, STILLWATER_MIGRATION_BANDWIDTH="1")
    try:
        cloud.up()
        yield Stage(cloud)
    finally:
        cloud.end()


@pytest.fixture(scope="module")
def flavor(theatre: Stage) -> str:
    """With a disk as large as the image: at 1 MiB/s."""
    theatre.cloud.sdk(admin=True).compute.create_flavor(name="moving", ram=64, vcpus=1, disk=0, id="moving")
    return "moving"


@pytest.fixture(scope="module")
def images(theatre: Stage) -> dict[str, str]:
    """Guests that count aloud; one of them never ends."""
    kind = {"disk_format": "raw", "container_format": "bare", "visibility": "public", "validate_checksum": False}
    image = theatre.cloud.sdk(admin=True).image
    names = ("micro-ticks", "micro-dirty")
    return {name: image.create_image(name, filename=str(ROOT / f"var/guests/{name}.img"), **kind).id for name in names}


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """Everything runs; afterwards it is empty, and the books agree."""
    theatre.cloud.up()
    yield theatre
    theatre.cloud.up()
    theatre.empty()
    assert [theatre.cloud.guests(host) for host in theatre.cloud.state.hosts] == [[], [], [], []]
    for host in theatre.cloud.state.hosts:
        kept = theatre.cloud.state.path("hosts", host, "state")
        assert [entry for folder in ("guests", "arriving", "departed") for entry in kept.glob(f"{folder}/*")] == []


@pytest.fixture
def ticking(stage: Stage, images: dict[str, str], flavor: str) -> str:
    """A server on host1 whose guest says every second that it lives."""
    return booted(stage, images["micro-ticks"], flavor)


@pytest.fixture
def leaving(stage: Stage, images: dict[str, str], flavor: str) -> str:
    """A server that is just on its way from host1 to host3, and does not get there by itself."""
    uuid = booted(stage, images["micro-dirty"], flavor)
    assert stage.ask(uuid, LIVE) == 202
    eventually("its memory is on its way", lambda: progress(stage, uuid).get("memory_total_bytes"), 60, 0.1)
    return uuid


def booted(stage: Stage, image: str, flavor: str) -> str:
    server = {"name": "moving", "imageRef": image, "flavorRef": flavor, "networks": "none", "host": SOURCE}
    answer = stage.call("POST", "/servers", {"server": server})
    assert answer.status_code == 202, answer.text
    uuid = str(answer.json()["server"]["id"])
    stage.wait(uuid, "ACTIVE")
    eventually("the guest is up", lambda: "TICK 1" in console(stage, uuid), 30, 0.1)
    return uuid


def console(stage: Stage, uuid: str) -> str:
    """What the guest said on its serial line."""
    answer = stage.call("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}})
    return str(answer.json()["output"]) if answer.status_code == 200 else ""


def progress(stage: Stage, uuid: str) -> dict:
    """Of the migration that goes on; {} when none does."""
    found = stage.call("GET", f"/servers/{uuid}/migrations").json()["migrations"]
    return dict(found[0]) if found else {}


def migration(stage: Stage, uuid: str) -> dict:
    """The newest of a server."""
    return dict(stage.call("GET", f"/os-migrations?instance_uuid={uuid}").json()["migrations"][0])


def is_at(stage: Stage, uuid: str, host: str, state: str = "ACTIVE") -> None:
    """It lives there, nowhere else, and has lived all the time: it counts on, and never began again."""
    stage.wait(uuid, state, 90)
    books.settled(stage.cloud)
    assert stage.show(uuid)["OS-EXT-SRV-ATTR:host"] == host
    assert {name: len(stage.cloud.libvirtd(name).qemu_pids()) for name in (SOURCE, DEST)} == {
        SOURCE: int(host == SOURCE), DEST: int(host == DEST),
    }  # fmt: skip
    books.check(stage.cloud)
    if state == "ACTIVE":
        seen = last_tick(stage, uuid)
        eventually("it goes on counting", lambda: last_tick(stage, uuid) > seen, 20, 0.2)
    said = console(stage, uuid)
    assert said.count("STILLWATER BOOT") == 1
    ticks = [int(tick) for tick in re.findall(r"TICK (\d+)\n", said)]
    assert ticks == list(range(1, len(ticks) + 1))


def last_tick(stage: Stage, uuid: str) -> int:
    return max(int(tick) for tick in re.findall(r"TICK (\d+)\n", console(stage, uuid)))


def event_details(stage: Stage, uuid: str, event: str) -> str:
    """What the newest action says of one of its events, as the stock client shows it."""
    request = stage.call("GET", f"/servers/{uuid}/os-instance-actions").json()["instanceActions"][0]["request_id"]
    shown = stage.cloud.openstack("server", "event", "show", uuid, request, **ADMIN)
    (found,) = [one for one in shown["events"] if one["event"] == event]
    return str(found["details"])


# -- the stock client


def test_the_stock_client_moves_a_guest_that_goes_on_counting(stage, ticking):
    stage.cloud.do("server", "migrate", "--live-migration", "--wait", ticking, **ADMIN)
    is_at(stage, ticking, DEST)
    details = event_details(stage, ticking, "compute_live_migration")
    assert re.fullmatch(r"the guest moved in \d+\.\d s: \d+\.\d MiB sent, paused for \d+ ms", details)
    (row,) = stage.cloud.openstack("server", "migration", "list", "--server", ticking, **ADMIN)
    assert (row["Status"], row["Source Compute"], row["Dest Compute"]) == ("completed", SOURCE, DEST)

    stage.cloud.do("server", "migrate", "--live-migration", "--host", SOURCE, "--wait", ticking, **ADMIN)
    is_at(stage, ticking, SOURCE)


def test_the_stock_client_sees_how_far_it_is_and_aborts_it(stage, leaving):
    (row,) = stage.cloud.openstack("server", "migration", "list", "--server", leaving, **ADMIN)
    assert row["Status"] == "running"
    shown = progress(stage, leaving)  # `server migration show` of this client mixes up its two ids
    assert shown["memory_total_bytes"] >= 64 << 20
    assert 0 < shown["memory_remaining_bytes"] < shown["memory_total_bytes"]
    assert (shown["disk_total_bytes"], shown["disk_remaining_bytes"]) == (1 << 20, 0)
    stage.cloud.do("server", "migration", "abort", leaving, str(row["Id"]), **ADMIN)
    is_at(stage, leaving, SOURCE)
    assert migration(stage, leaving)["status"] == "cancelled"


def test_the_stock_client_has_it_completed_by_force(stage, leaving):
    stage.cloud.do("server", "migration", "force", "complete", leaving, str(progress(stage, leaving)["id"]), **ADMIN)
    is_at(stage, leaving, DEST)
    assert migration(stage, leaving)["status"] == "completed"


def test_a_paused_guest_moves_and_stays_paused(stage, ticking):
    assert stage.ask(ticking, {"pause": None}) == 202
    stage.wait(ticking, "PAUSED")
    assert stage.ask(ticking, LIVE) == 202
    is_at(stage, ticking, DEST, "PAUSED")
    assert stage.ask(ticking, {"unpause": None}) == 202
    is_at(stage, ticking, DEST)


def test_who_says_that_the_hosts_share_storage_is_told_that_they_do_not(stage, ticking):
    assert stage.ask(ticking, {"os-migrateLive": {"host": DEST, "block_migration": False}}) == 202
    is_at(stage, ticking, SOURCE)
    assert migration(stage, ticking)["status"] == "failed"
    details = event_details(stage, ticking, "compute_pre_live_migration")
    assert "is not on shared storage: Shared storage live-migration requires either shared storage" in details


@pytest.fixture
def shared(stage: Stage, tmp_path: Path) -> Iterator[Path]:
    """The hosts have the folder of their guests in common, until the end of the test."""
    stage.restart_with(SOURCE, DEST, GUESTS_DIR=str(tmp_path))
    yield tmp_path
    stage.empty()
    del stage.cloud.settings["STILLWATER_GUESTS_DIR"]
    kept = stage.cloud.directory / "stillwater.env"
    kept.write_text("".join(line for line in kept.open() if "GUESTS_DIR" not in line))
    stage.restart_with(SOURCE, DEST)


def test_hosts_that_share_disks_do_not_copy_them(stage, shared, images, flavor):
    uuid = booted(stage, images["micro-ticks"], flavor)
    disk = (shared / uuid / "disk.qcow2").stat().st_ino
    assert stage.ask(uuid, {"os-migrateLive": {"host": DEST, "block_migration": True}}) == 202
    is_at(stage, uuid, SOURCE)
    details = event_details(stage, uuid, "compute_pre_live_migration")
    assert "is not on local storage: Block migration can not be used with shared storage." in details

    for host, other in ((DEST, SOURCE), (SOURCE, DEST)):
        stage.cloud.do("server", "migrate", "--live-migration", "--host", host, "--wait", uuid, **ADMIN)
        is_at(stage, uuid, host)
        assert [entry.name for entry in shared.iterdir() if entry.name != "images"] == [uuid]
        assert not stage.cloud.state.path("hosts", other, "state", "departed", uuid).exists()
    assert (shared / uuid / "disk.qcow2").stat().st_ino == disk


# -- who stops, and who dies


def test_a_move_is_aborted_within_two_seconds_while_its_source_drains(stage, leaving):
    stopping = stage.stop(SOURCE)
    eventually("it drains", lambda: stage.service(SOURCE).get("stillwater:drain"), 10, 0.05)

    begun = time.monotonic()
    path = f"/servers/{leaving}/migrations/{progress(stage, leaving)['id']}"
    assert stage.call("DELETE", path).status_code == 202
    stage.wait(leaving, "ACTIVE", 10)
    took = time.monotonic() - begun

    stopping.ended(15)
    assert took < fair(2), f"the abort took {took:.1f} s"
    stage.cloud.up()
    is_at(stage, leaving, SOURCE)


@pytest.mark.parametrize("name", [SOURCE, DEST, "conductor-cell1"])
def test_a_process_killed_while_the_guest_moves_changes_nothing(stage, leaving, name):
    stage.cloud.kill(name, signal.SIGKILL)
    time.sleep(1)
    stage.cloud.up()
    path = f"/servers/{leaving}/migrations/{progress(stage, leaving)['id']}/action"
    assert stage.call("POST", path, {"force_complete": None}).status_code == 202
    is_at(stage, leaving, DEST)


def test_a_server_deleted_while_it_moves_is_nowhere(stage, leaving):
    assert stage.call("DELETE", f"/servers/{leaving}").status_code == 204
    stage.wait(leaving, "DELETED")
    books.settled(stage.cloud)
    assert [len(stage.cloud.libvirtd(host).qemu_pids()) for host in (SOURCE, DEST)] == [0, 0]
