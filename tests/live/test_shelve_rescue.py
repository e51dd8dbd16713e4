"""The stock client rescues a real guest, and takes one from its host and back, with its disk as it was."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
READY = "STILLWATER READY"
NAME = "shelf"
SHELVED = f"{NAME}-shelved"


@pytest.fixture(scope="module")
def sdk(pair_cloud: Cloud) -> Any:
    """An admin; quicker to start than the client."""
    return pair_cloud.sdk(admin=True)


@pytest.fixture(scope="module")
def guest(pair_cloud: Cloud, sdk: Any) -> Iterator[str]:
    """A guest that came up once; every test leaves it running."""
    words = ("--flavor", "m1.nano", "--image", "micro", "--nic", "none", "--wait", NAME)
    uuid = pair_cloud.openstack("server", "create", *words)["id"]
    comes_up(sdk, uuid, 1)
    yield uuid
    if uuid in {row.uuid for row in books.rows(pair_cloud)}:
        pair_cloud.do("server", "delete", "--wait", uuid)


def row_of(cloud: Cloud, uuid: str) -> books.Row:
    """Its record."""
    return next(row for row in books.rows(cloud) if row.uuid == uuid)


def folder(cloud: Cloud, host: str, uuid: str) -> Path:
    """What a host keeps of a guest."""
    return cloud.state.path("hosts", host, "state", "guests", uuid)


def disks(cloud: Cloud, host: str, uuid: str) -> list[str]:
    """What libvirt says its guest has."""
    lines = [line.split() for line in cloud.virsh(host, "domblklist", uuid).splitlines()]
    return [f"{words[0]} {Path(words[1]).name}" for words in lines if words and words[0].startswith("vd")]


def boots(sdk: Any, uuid: str) -> int:
    """The count of the boot it came up with last, as it keeps it on the disk it boots."""
    said = sdk.compute.get_server_console_output(uuid)["output"]
    found = re.findall(rf"boots=(\d+)\s+{READY}", said)
    return int(found[-1]) if found else 0


def said(sdk: Any, uuid: str) -> list[int]:
    """Every boot it speaks of, by the disk's own count."""
    return [int(count) for count in re.findall(r"boots=(\d+)", sdk.compute.get_server_console_output(uuid)["output"])]


def comes_up(sdk: Any, uuid: str, count: int) -> None:
    """It counts this boot as its so-manieth."""
    eventually(f"boot {count}", lambda: boots(sdk, uuid) == count, 60)


def images(sdk: Any) -> list[str]:
    """Those of the shelf."""
    return [image.id for image in sdk.image.images(name=SHELVED)]


def is_active(cloud: Cloud, uuid: str) -> str:
    """The host it is active on, when the books agree."""
    books.settled(cloud)
    books.check(cloud)
    row = row_of(cloud, uuid)
    assert row.vm_state == "active"
    return row.host


def is_nowhere(cloud: Cloud, sdk: Any, uuid: str) -> None:
    """Offloaded: its image is all there is of it."""
    books.settled(cloud)
    books.check(cloud)
    row = row_of(cloud, uuid)
    assert (row.vm_state, row.host) == ("shelved_offloaded", "")
    for host in cloud.state.hosts:
        assert uuid not in cloud.virsh(host, "list", "--all", "--uuid")
        assert not folder(cloud, host, uuid).exists()
    assert [image.status for image in sdk.image.images(name=SHELVED)] == ["active"]


def test_a_rescued_guest_boots_another_disk_with_its_own_as_the_second(pair_cloud, sdk, guest):
    host = is_active(pair_cloud, guest)
    pair_cloud.do("server", "rescue", guest)
    eventually("rescued", lambda: pair_cloud.openstack("server", "show", guest)["status"] == "RESCUE", 60, 1)
    assert disks(pair_cloud, host, guest) == ["vda rescue.qcow2", "vdb disk.qcow2"]
    eventually("it came up twice", lambda: said(sdk, guest) == [1, 1], 60)  # a fresh disk has never booted
    books.check(pair_cloud)

    pair_cloud.do("server", "unrescue", guest)
    eventually("active", lambda: row_of(pair_cloud, guest).vm_state == "active", 60)
    comes_up(sdk, guest, 2)  # its own disk has, once
    assert disks(pair_cloud, host, guest) == ["vda disk.qcow2"]
    assert not (folder(pair_cloud, host, guest) / "rescue.qcow2").exists()
    is_active(pair_cloud, guest)


def test_a_shelved_guest_comes_back_with_its_disk_on_another_host(pair_cloud, sdk, guest):
    source, before = is_active(pair_cloud, guest), boots(sdk, guest)
    pair_cloud.do("server", "shelve", "--wait", guest)
    is_nowhere(pair_cloud, sdk, guest)

    cells = pair_cloud.state.hosts
    other = next(host for host in cells if host != source and cells[host] == cells[source])
    newest = ("--os-compute-api-version", "2.91")
    pair_cloud.do(*newest, "server", "unshelve", "--wait", "--host", other, guest, admin=True)
    assert is_active(pair_cloud, guest) == other
    comes_up(sdk, guest, before + 1)
    assert not images(sdk)
    info = ["qemu-img", "info", "-U", "--output=json", str(folder(pair_cloud, other, guest) / "disk.qcow2")]
    assert "backing-filename" not in json.loads(subprocess.check_output(info, timeout=30))


def test_an_unshelved_guest_is_one_like_any_other(pair_cloud, sdk, guest):
    """Its disk is based on no image any more, and that is nobody's concern."""
    source, before = is_active(pair_cloud, guest), boots(sdk, guest)
    sdk.compute.stop_server(guest)
    eventually("it is off", lambda: row_of(pair_cloud, guest).vm_state == "stopped", 60)
    sdk.compute.start_server(guest)
    comes_up(sdk, guest, before + 1)
    books.settled(pair_cloud)
    sdk.compute.migrate_server(guest)
    eventually("it has moved", lambda: row_of(pair_cloud, guest).vm_state == "resized", 60)
    books.settled(pair_cloud)
    sdk.compute.confirm_server_resize(guest)
    comes_up(sdk, guest, before + 2)
    assert is_active(pair_cloud, guest) != source


def test_a_paused_guest_is_offloaded_and_deleted_and_its_image_with_it(pair_cloud, sdk, guest):
    is_active(pair_cloud, guest)
    sdk.compute.pause_server(guest)
    eventually("paused", lambda: row_of(pair_cloud, guest).vm_state == "paused", 60)
    pair_cloud.do("server", "shelve", "--offload", "--wait", guest, admin=True)
    is_nowhere(pair_cloud, sdk, guest)

    pair_cloud.do("server", "delete", "--wait", guest)
    books.settled(pair_cloud)
    books.check(pair_cloud)
    eventually("no image is left", lambda: not images(sdk), 30)
