"""The stock client takes real guests to another host and to another flavor with their power off meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.state import ROOT
from tests.live import books
from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
READY = "STILLWATER READY"
MICRO = ROOT / "var/guests/micro.img"
FILLED = 256 << 20  # enough for a copy of a second or two
GIB = 1 << 30


@pytest.fixture(scope="module")
def sdk(pair_cloud: Cloud) -> Any:
    """An admin; quicker to start than the client."""
    return pair_cloud.sdk(admin=True)


@pytest.fixture(scope="module")
def guest(pair_cloud: Cloud, sdk: Any) -> Iterator[str]:
    """A guest that runs; every test leaves it running, and confirmed or reverted."""
    words = ("--flavor", "m1.nano", "--image", "micro", "--nic", "none", "--wait", "cold")
    uuid = pair_cloud.openstack("server", "create", *words)["id"]
    yield uuid
    delete(pair_cloud, sdk, uuid)


@pytest.fixture(scope="module")
def image(sdk: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """For guests whose disks take their time."""
    file = tmp_path_factory.mktemp("cold") / "large.img"
    file.write_bytes(MICRO.read_bytes() + os.urandom(FILLED))
    kind = {"disk_format": "raw", "container_format": "bare"}
    image = sdk.image.create_image("cold-large", filename=str(file), validate_checksum=False, **kind)
    file.unlink()
    yield image.id
    sdk.image.delete_image(image.id)


@pytest.fixture(scope="module")
def large(pair_cloud: Cloud, sdk: Any, image: str) -> Iterator[str]:
    """A guest with such a disk."""
    words = ("--flavor", "m1.nano", "--image", image, "--nic", "none", "--wait", "cold-large")
    uuid = pair_cloud.openstack("server", "create", *words, admin=True)["id"]
    yield uuid
    delete(pair_cloud, sdk, uuid)


def delete(cloud: Cloud, sdk: Any, uuid: str) -> None:
    """And nothing is left of it on any host."""
    sdk.compute.delete_server(uuid)
    eventually("it is gone", lambda: uuid not in {row.uuid for row in books.rows(cloud)}, 60)
    books.settled(cloud)
    assert [folder(cloud, host, uuid) for host in cloud.state.hosts if folder(cloud, host, uuid).exists()] == []


def row_of(cloud: Cloud, uuid: str) -> books.Row:
    """Its record."""
    return next(row for row in books.rows(cloud) if row.uuid == uuid)


def other(cloud: Cloud, host: str) -> str:
    """The second host of its cell."""
    hosts = cloud.state.hosts
    return next(name for name in hosts if name != host and hosts[name] == hosts[host])


def folder(cloud: Cloud, host: str, uuid: str) -> Path:
    """What a host keeps of a guest."""
    return cloud.state.path("hosts", host, "state", "guests", uuid)


def boots(sdk: Any, uuid: str) -> int:
    """How often it came up, as it counts on its own disk; 0 when it does not say so any more."""
    said = sdk.compute.get_server_console_output(uuid)["output"]
    found = re.findall(rf"boots=(\d+)\s+{READY}", said)
    return int(found[-1]) if found else 0


def comes_up(sdk: Any, uuid: str, times: int) -> None:
    """It counts this boot as its so-manieth."""
    eventually(f"boot {times}", lambda: boots(sdk, uuid) == times, 60)


def is_at(cloud: Cloud, uuid: str, host: str, state: str = "active") -> None:
    """On record, with its guest, its claim and nothing more."""
    rows = books.settled(cloud)
    books.check(cloud)
    (row,) = [row for row in rows if row.uuid == uuid]
    assert (row.host, row.vm_state, row.task_state) == (host, state, None)


def room_of(cloud: Cloud, uuid: str) -> set[str]:
    """The hosts that keep room for it."""
    held = f"""SELECT n.host FROM compute_allocation a JOIN compute_computenode n ON a.node_id = n.id
        WHERE a.server_id = '{uuid}'"""
    return {host for cell in ("cell1", "cell2") for (host,) in cloud.ask(cell, held)}


def cores(sdk: Any, cloud: Cloud) -> int:
    """What the project is charged for."""
    return int(cloud.sdk().get_compute_limits()["total_cores_used"])


def size_of(file: Path) -> int:
    """Of a guest's disk."""
    said = subprocess.run(
        ["qemu-img", "info", "-U", "--output=json", str(file)], capture_output=True, check=True, timeout=30
    ).stdout
    return int(json.loads(said)["virtual-size"])


def test_a_migrated_guest_is_elsewhere_with_its_disk_and_confirmed(pair_cloud, sdk, guest):
    source = row_of(pair_cloud, guest).host
    before = eventually("it is up", lambda: boots(sdk, guest), 60)
    pair_cloud.do("server", "migrate", "--wait", guest, admin=True)

    (listed,) = pair_cloud.openstack("server", "list", "--name", "^cold$")
    assert listed["Status"] == "VERIFY_RESIZE"
    is_at(pair_cloud, guest, other(pair_cloud, source), "resized")
    assert room_of(pair_cloud, guest) == {source, other(pair_cloud, source)}
    comes_up(sdk, guest, before + 1)
    assert f"boots={before}" in sdk.compute.get_server_console_output(guest)["output"], "its console came along"

    pair_cloud.do("server", "migrate", "confirm", guest, admin=True)
    is_at(pair_cloud, guest, other(pair_cloud, source))
    assert room_of(pair_cloud, guest) == {other(pair_cloud, source)}
    assert not folder(pair_cloud, source, guest).exists()
    shown = pair_cloud.openstack("server", "migration", "list", "--server", guest, admin=True)
    (migration,) = [row for row in shown if row["Type"] == "migration"]
    assert (migration["Status"], migration["Source Compute"], migration["Dest Compute"]) == (
        "confirmed", source, other(pair_cloud, source),
    )  # fmt: skip


def test_a_resized_guest_has_its_flavor_and_goes_back_with_its_old_disk(pair_cloud, sdk, guest):
    source, before = row_of(pair_cloud, guest).host, boots(sdk, guest)
    destination, charged = other(pair_cloud, source), cores(sdk, pair_cloud)
    old_size = size_of(folder(pair_cloud, source, guest) / "disk.qcow2")
    pair_cloud.do("server", "resize", "--flavor", "m1.medium", "--wait", "cold")
    shown = pair_cloud.openstack("server", "show", "cold")
    assert (shown["status"], shown["flavor"]["name"]) == ("VERIFY_RESIZE", "m1.medium")
    said = pair_cloud.virsh(destination, "dominfo", guest)
    assert re.search(r"CPU\(s\):\s+2\n", said)
    assert re.search(rf"Max memory:\s+{512 << 10} KiB", said)
    assert size_of(folder(pair_cloud, destination, guest) / "disk.qcow2") == 5 * GIB
    assert cores(sdk, pair_cloud) == charged + 1
    comes_up(sdk, guest, before + 1)

    pair_cloud.do("server", "resize", "revert", "cold")
    is_at(pair_cloud, guest, source)
    assert room_of(pair_cloud, guest) == {source}
    assert size_of(folder(pair_cloud, source, guest) / "disk.qcow2") == old_size
    assert cores(sdk, pair_cloud) == charged
    comes_up(sdk, guest, before + 1)
    assert not folder(pair_cloud, destination, guest).exists()


def test_a_stopped_guest_is_resized_confirmed_and_stays_off(pair_cloud, sdk, guest):
    source, before = row_of(pair_cloud, guest).host, boots(sdk, guest)
    sdk.compute.stop_server(guest)
    books.settled(pair_cloud)
    pair_cloud.do("server", "resize", "--flavor", "m1.tiny", "--wait", "cold")
    pair_cloud.do("server", "resize", "confirm", "cold")
    is_at(pair_cloud, guest, other(pair_cloud, source), "stopped")
    assert pair_cloud.virsh(other(pair_cloud, source), "domstate", guest).strip() == "shut off"
    sdk.compute.start_server(guest)
    comes_up(sdk, guest, before + 1)
    books.settled(pair_cloud)


def test_with_no_other_host_it_runs_on_and_the_fault_says_why(pair_cloud, sdk, guest):
    source, before = row_of(pair_cloud, guest).host, boots(sdk, guest)
    pair_cloud.do("compute", "service", "set", "--disable", other(pair_cloud, source), "nova-compute", admin=True)
    try:
        sdk.compute.migrate_server(guest)
        is_at(pair_cloud, guest, source)
    finally:
        pair_cloud.do("compute", "service", "set", "--enable", other(pair_cloud, source), "nova-compute", admin=True)
    assert "No valid host was found" in row_of(pair_cloud, guest).fault
    assert pair_cloud.virsh(source, "domstate", guest).strip() == "running"
    assert boots(sdk, guest) == before, "it was never off"


def is_being_sent(cloud: Cloud, destination: str, uuid: str) -> None:
    """Wait for the moment."""
    arriving = folder(cloud, destination, uuid) / "disk.arriving"
    eventually("its disk is being sent", arriving.exists, 60, 0.01)


def attempts_of(cloud: Cloud, uuid: str, step: str) -> int:
    """How often the newest of its steps of that name was begun."""
    newest = f"SELECT max(id), attempts FROM compute_step WHERE server_id = '{uuid}' AND name = '{step}' GROUP BY id"
    return int(max(found for cell in ("cell1", "cell2") for found in cloud.ask(cell, newest))[1])


def kill_worker(cloud: Cloud, host: str) -> None:
    cloud.kill(host, signal.SIGKILL)
    cloud.up()


def kill_libvirtd(cloud: Cloud, host: str) -> None:
    cloud.libvirtd(host).stop(signal.SIGKILL)
    cloud.up()


@pytest.mark.parametrize(
    ("at_source", "kill", "attempts"),
    [(True, kill_worker, 2), (False, kill_worker, 1), (False, kill_libvirtd, 2)],
    ids=["source", "destination", "libvirtd of the destination"],
)
def test_whoever_is_killed_while_the_disk_is_sent_it_is_in_one_place(
    at_source: bool, kill: Callable[[Cloud, str], None], attempts: int, pair_cloud: Cloud, sdk: Any, large: str
):
    source = row_of(pair_cloud, large).host
    destination, before = other(pair_cloud, source), boots(sdk, large)
    sdk.compute.migrate_server(large)
    is_being_sent(pair_cloud, destination, large)
    kill(pair_cloud, source if at_source else destination)

    eventually("it waits for a word", lambda: row_of(pair_cloud, large).vm_state == "resized", 90)
    is_at(pair_cloud, large, destination, "resized")
    tries = attempts_of(pair_cloud, large, "migrate_out")  # a libvirtd that starts slowly may cost more than one
    assert tries == attempts or (kill is kill_libvirtd and tries > attempts), "it was killed at another moment"
    comes_up(sdk, large, before + 1)
    sdk.compute.confirm_server_resize(large)
    is_at(pair_cloud, large, destination)
    assert not folder(pair_cloud, source, large).exists()
    assert "stillwater" not in pair_cloud.virsh(destination, "pool-list", "--all")


def test_a_guest_deleted_while_its_disk_is_sent_is_nowhere(pair_cloud, sdk, image):
    words = ("--flavor", "m1.nano", "--image", image, "--nic", "none", "--wait", "cold-deleted")
    uuid = pair_cloud.openstack("server", "create", *words, admin=True)["id"]
    destination = other(pair_cloud, row_of(pair_cloud, uuid).host)
    sdk.compute.migrate_server(uuid)
    is_being_sent(pair_cloud, destination, uuid)
    delete(pair_cloud, sdk, uuid)
    books.check(pair_cloud)
    for host in pair_cloud.state.hosts:
        assert "stillwater" not in pair_cloud.virsh(host, "pool-list", "--all")


def test_nobody_says_a_word_and_it_is_confirmed_all_the_same(pair_cloud, sdk, guest):
    source = row_of(pair_cloud, guest).host
    conductor = f"conductor-{pair_cloud.state.hosts[source]}"
    restart_with(pair_cloud, conductor, window=3)
    try:
        sdk.compute.migrate_server(guest)
        eventually("it waits for a word", lambda: row_of(pair_cloud, guest).vm_state == "resized", 60, 0.1)
        eventually("it is confirmed", lambda: row_of(pair_cloud, guest).vm_state == "active", 60)
        is_at(pair_cloud, guest, other(pair_cloud, source))
        assert not folder(pair_cloud, source, guest).exists()
        newest = next(iter(sdk.compute.server_actions(guest)))
        assert (newest.action, newest.user_id) == ("confirmResize", "")
    finally:
        restart_with(pair_cloud, conductor, window=0)


def restart_with(cloud: Cloud, conductor: str, window: int) -> None:
    """A conductor that waits so long for a word."""
    cloud.settings |= {"STILLWATER_RESIZE_CONFIRM_WINDOW": str(window)}
    cloud.kill(conductor, signal.SIGTERM)
    cloud.up()
