"""The stock client leads a real guest through its whole life; the hypervisor is asked whether it is true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import ClientFailed, Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
BOOT = ("server", "create", "--flavor", "m1.nano", "--wait")
READY = "STILLWATER READY"


@pytest.fixture(scope="module")
def guest(cloud: Cloud) -> Iterator[dict[str, Any]]:
    """A running guest; every test leaves it running."""
    shown = cloud.openstack(*BOOT, "--image", "micro", "--nic", "none", "life")
    assert shown["status"] == "ACTIVE"
    yield shown
    if "life" in {row.name for row in books.rows(cloud)}:
        cloud.do("server", "delete", "--wait", "life")


def test_images_and_flavors_can_be_chosen_from(cloud):
    assert {"micro", "tiny-linux"} <= {image["Name"] for image in cloud.openstack("image", "list")}
    flavors = {flavor["Name"]: flavor for flavor in cloud.openstack("flavor", "list")}
    assert flavors["m1.nano"] == {
        "ID": "42", "Name": "m1.nano", "RAM": 64, "Disk": 1, "Ephemeral": 0, "VCPUs": 1, "Is Public": True,
    }  # fmt: skip


def test_a_guest_is_listed_and_shown(cloud, guest):
    (row,) = cloud.openstack("server", "list", "--long", "--name", "^life$")
    columns = ("Status", "Power State", "Image Name", "Flavor")
    assert [row[column] for column in columns] == ["ACTIVE", 1, "micro", "m1.nano"]
    shown = cloud.openstack("server", "show", "life")
    assert shown["id"] == guest["id"] == row["ID"]
    assert shown["flavor"]["ram"] == 64
    assert re.fullmatch(r"[0-9a-f]{56}", shown["hostId"])


def test_a_guest_is_real(cloud, guest):
    console = eventually("the guest is up", lambda: READY in (said := console_of(cloud)) and said, 30)
    assert "STILLWATER BOOT image=micro boots=1" in console
    assert virsh_state(cloud, guest) == "running"


def test_stop_and_start(cloud, guest):
    boots = boots_of(cloud)
    cloud.do("server", "stop", "life")
    wait_for(cloud, "SHUTOFF")
    assert virsh_state(cloud, guest) == "shut off"
    assert "STILLWATER POWERBTN" in console_of(cloud), "it was not asked to shut down"

    cloud.do("server", "start", "life")
    wait_for(cloud, "ACTIVE")
    assert virsh_state(cloud, guest) == "running"
    eventually("it has booted again", lambda: boots_of(cloud) == boots + 1, 30)


@pytest.mark.parametrize("how", ["--hard", "--soft"])
def test_reboot(cloud, guest, how):
    boots = boots_of(cloud)
    cloud.do("server", "reboot", how, "--wait", "life")
    eventually("it has booted again", lambda: boots_of(cloud) == boots + 1, 30)
    assert virsh_state(cloud, guest) == "running"


@pytest.mark.parametrize(
    ("verb", "status", "domain", "back"),
    [("pause", "PAUSED", "paused", "unpause"), ("suspend", "SUSPENDED", "shut off", "resume")],
)
def test_pause_and_suspend_and_back(cloud, guest, verb, status, domain, back):
    boots = boots_of(cloud)
    cloud.do("server", verb, "life")
    wait_for(cloud, status)
    assert virsh_state(cloud, guest) == domain

    cloud.do("server", back, "life")
    wait_for(cloud, "ACTIVE")
    assert virsh_state(cloud, guest) == "running"
    assert boots_of(cloud) == boots, "it was booted again instead of going on"


def test_a_locked_server_refuses_its_owner(cloud, guest):
    cloud.do("server", "lock", "life")
    with pytest.raises(ClientFailed, match=f"409: Client Error for url: .*Instance {guest['id']} is locked"):
        cloud.do("server", "stop", "life")
    cloud.do("server", "unlock", "life")
    assert virsh_state(cloud, guest) == "running"


def test_properties_and_tags(cloud, guest):
    cloud.do("server", "set", "--property", "role=web", "--property", "tier=1", "--tag", "blue", "life")
    cloud.do("server", "unset", "--property", "tier", "life")
    shown = cloud.openstack("server", "show", "life")
    assert (shown["properties"], shown["tags"]) == ({"role": "web"}, ["blue"])
    (row,) = cloud.openstack("server", "list", "--tags", "blue")
    assert row["Name"] == "life"
    cloud.do("server", "unset", "--tag", "blue", "life")
    assert cloud.openstack("server", "list", "--tags", "blue") in (None, [])


def test_a_server_from_a_snapshot_on_the_other_host_with_an_address(cloud, guest):
    """The micro guest counts its boots on its own disk: a copy goes on counting."""
    boots = boots_of(cloud)
    image = cloud.openstack("server", "image", "create", "--name", "life-copy", "--wait", "life")
    assert (image["status"], image["properties"]["instance_uuid"]) == ("active", guest["id"])

    copy = cloud.openstack(*BOOT, "--image", "life-copy", "--nic", "auto", "copy")

    assert copy["addresses"] == {"auto_allocated_network": ["10.0.2.15"]}
    line = f"image=micro boots={boots + 1}"
    eventually("the copy is up", lambda: line in console_of(cloud, "copy"), 30)
    rows = cloud.openstack("server", "list", "--long", "--all-projects", admin=True)
    where = {row["Name"]: row["Host"] for row in rows}
    assert {where["life"], where["copy"]} == set(cloud.state.hosts), "two cells have one each"
    assert virsh_state(cloud, copy) == "running"
    cloud.do("server", "delete", "--wait", "copy")
    cloud.do("image", "delete", "life-copy")
    assert "life-copy" not in {row["Name"] for row in cloud.openstack("image", "list")}


def test_what_happened_is_in_the_events(cloud, guest):
    events = cloud.openstack("server", "event", "list", "life")
    assert events[-1]["Action"] == "create"
    happened = {event["Action"] for event in events}
    assert happened >= {"stop", "start", "reboot", "pause", "lock", "createImage"}
    shown = cloud.openstack("server", "event", "show", guest["id"], events[-1]["Request ID"], admin=True)
    (build,) = shown["events"]
    assert (build["event"], build["result"]) == ("compute__do_build_and_run_instance", "Success")


def test_a_whole_linux_boots(cloud):
    words = ("--flavor", "m1.tiny", "--image", "tiny-linux", "--nic", "none", "--wait", "linux")
    linux = cloud.openstack("server", "create", *words)
    sdk = cloud.sdk()
    eventually("Linux is up", lambda: READY in console_by(sdk, linux["id"]), 120)
    assert READY in console_of(cloud, "linux")
    assert virsh_state(cloud, linux) == "running"
    cloud.do("server", "delete", "--wait", "linux")


def test_a_deleted_server_leaves_nothing_on_its_host(cloud, guest):
    disk = disk_of(cloud, guest)
    assert (disk / "disk.qcow2").exists()
    cloud.do("server", "delete", "--wait", "life")
    assert "life" not in {row["Name"] for row in cloud.openstack("server", "list") or []}
    for host in cloud.state.hosts:
        assert books.guests(cloud, host) == set()
        assert not any(cloud.state.path("hosts", host, "state", "guests").glob("*"))
    assert not disk.exists()
    assert books.claims(cloud) == set()
    books.check(cloud)


def wait_for(cloud: Cloud, wanted: str) -> None:
    """For commands that do not wait by themselves; the client, which is slow to start, looks once."""
    row = next(row for row in books.rows(cloud) if row.name == "life")
    sdk = cloud.sdk()
    eventually(wanted, lambda: sdk.compute.get_server(row.uuid).status == wanted, 60)
    assert cloud.openstack("server", "show", "life", "-c", "status") == {"status": wanted}


def console_of(cloud: Cloud, name: str = "life") -> str:
    """Its serial console."""
    return cloud.do("console", "log", "show", name)


def console_by(sdk: Any, uuid: str) -> str:
    """The same without starting a client, for those who ask often."""
    return str(sdk.compute.get_server_console_output(uuid)["output"])


def boots_of(cloud: Cloud) -> int:
    """How often it came up, as it counts on its own disk."""
    return int(re.findall(rf"boots=(\d+)\s+{READY}", console_of(cloud))[-1])


def virsh_state(cloud: Cloud, server: dict[str, Any]) -> str:
    """What the libvirtd of its host says."""
    return cloud.virsh(host_of(cloud, server), "domstate", server["id"]).strip()


def host_of(cloud: Cloud, server: dict[str, Any]) -> str:
    """The host on record."""
    return next(row.host for row in books.rows(cloud) if row.uuid == server["id"])


def disk_of(cloud: Cloud, server: dict[str, Any]) -> Path:
    """The folder its host keeps of it."""
    return cloud.state.path("hosts", host_of(cloud, server), "state", "guests", server["id"])
