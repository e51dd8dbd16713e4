"""Hosts that die for good, with real workers and with real guests: their servers are evacuated, and they return."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]
SOURCE, DEST = "host1", "host3"
SPAWNED, OFF, DESTROYED = "spawned", "powered off by force", "destroyed"
OLD = ("--os-compute-api-version", "2.94")  # the last one in which evacuated servers are powered on
READY = "STILLWATER READY"


@pytest.fixture(scope="module")
def theatre() -> Iterator[Stage]:
    """Two cells with two simulated hosts each: host1 and host3, host2 and host4."""
    with Cloud("fake", hosts_per_cell=2) as cloud:
        yield Stage(cloud)


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """Everything runs; afterwards it is empty, the books agree, and every host is up."""
    theatre.cloud.up()
    yield theatre
    theatre.cloud.up()
    books.settled(theatre.cloud)
    force(theatre.cloud, SOURCE, "--up")
    theatre.empty()


def force(cloud: Cloud, host: str, word: str) -> None:
    """The operator's word: --down, --up."""
    cloud.do("compute", "service", "set", word, host, "nova-compute", admin=True)


def evacuate(stage: Stage, uuid: str, **more: Any) -> Any:
    """Ask for it, at 2.94."""
    headers = {**stage._headers, "OpenStack-API-Version": "compute 2.94"}
    stage._headers, kept = headers, stage._headers
    try:
        return stage.call("POST", f"/servers/{uuid}/action", {"evacuate": more})
    finally:
        stage._headers = kept


def lasting(stage: Stage, uuid: str) -> list[str]:
    """What was done to it. A host that is back turns off what it will remove, unless that comes even sooner."""
    return [effect for effect in stage.effects(uuid) if effect != OFF]


def migration(stage: Stage, uuid: str) -> dict:
    """The newest of a server."""
    return dict(stage.call("GET", f"/os-migrations?instance_uuid={uuid}").json()["migrations"][0])


def lives_at(stage: Stage, uuid: str, host: str, status: str = "ACTIVE") -> None:
    """As the API says."""
    stage.wait(uuid, status)
    assert stage.show(uuid)["OS-EXT-SRV-ATTR:host"] == host


def test_the_stock_client_evacuates_a_server_and_its_old_host_returns(stage):
    (uuid,) = stage.boot(1, SOURCE)
    stage.cloud.kill(SOURCE)
    refused = stage.cloud.client(*OLD, "server", "evacuate", uuid, admin=True)
    assert "Compute service of host1 is still in use." in refused.stderr  # it beat a moment ago
    force(stage.cloud, SOURCE, "--down")

    stage.cloud.do(*OLD, "server", "evacuate", uuid, admin=True)  # its --wait never ends: it waits for "ACTIVE"

    lives_at(stage, uuid, DEST)
    assert migration(stage, uuid)["status"] == "done"
    stage.cloud.up()
    books.settled(stage.cloud)
    books.check(stage.cloud)
    assert lasting(stage, uuid) == [SPAWNED, SPAWNED, DESTROYED]
    assert migration(stage, uuid)["status"] == "completed"
    force(stage.cloud, SOURCE, "--up")
    live = {"os-migrateLive": {"host": SOURCE, "block_migration": "auto"}}
    eventually("it may go back", lambda: stage.ask(uuid, live) == 202, 30, 0.5)
    stage.wait(uuid, "ACTIVE")
    lives_at(stage, uuid, SOURCE)


def test_a_host_that_is_said_to_be_off_and_reports_keeps_its_servers(stage):
    (uuid,) = stage.boot(1, SOURCE)
    force(stage.cloud, SOURCE, "--down")

    def reports() -> bool:
        answer = evacuate(stage, uuid)
        assert answer.status_code == 409, answer.text  # if not, its guest runs twice
        return "reports again" in answer.text

    seen = stage.service(SOURCE)["updated_at"]
    eventually("it beats", lambda: stage.service(SOURCE)["updated_at"] > seen, 20)
    eventually("it is heard", reports, 20)
    assert stage.effects(uuid) == [SPAWNED]


def test_many_are_evacuated_at_once_while_their_destination_is_killed(stage):
    many = stage.boot(12, SOURCE, stage.image(spawn_delay="1"))
    stage.cloud.kill(SOURCE)
    assert stage.ask(many[0], {"os-stop": None}) == 202  # it follows its server
    force(stage.cloud, SOURCE, "--down")
    assert [evacuate(stage, uuid).status_code for uuid in many] == [200] * 12
    stage.running(many[-1])
    stage.cloud.kill(DEST)
    stage.cloud.manage("host", "start", DEST)
    lives_at(stage, many[0], DEST, "SHUTOFF")
    for uuid in many[1:]:
        lives_at(stage, uuid, DEST)
    stage.cloud.up()
    books.settled(stage.cloud)
    books.check(stage.cloud)
    for uuid in many:
        assert stage.effects(uuid).count(DESTROYED) == 1


def test_a_delete_does_not_wait_for_a_host_that_is_gone(stage):
    late, early = stage.boot(2, SOURCE)
    stage.cloud.kill(SOURCE)
    assert stage.call("DELETE", f"/servers/{early}").status_code == 204
    assert stage.show(early)["OS-EXT-STS:task_state"] == "deleting"
    force(stage.cloud, SOURCE, "--down")
    stage.wait(early, "DELETED", 30)
    assert stage.call("DELETE", f"/servers/{late}").status_code == 204
    assert not stage.show(late)
    assert books.claims(stage.cloud) == set()
    stage.cloud.up()
    books.settled(stage.cloud)
    books.check(stage.cloud)
    assert lasting(stage, early) == lasting(stage, late) == [SPAWNED, DESTROYED]


# -- real guests


@pytest.fixture(scope="module")
def guest(pair_cloud: Cloud) -> Iterator[str]:
    """A real one."""
    words = ("--flavor", "m1.nano", "--image", "micro", "--nic", "none", "--wait", "evacuee")
    uuid = pair_cloud.openstack("server", "create", *words)["id"]
    yield uuid
    pair_cloud.up()
    pair_cloud.do("server", "delete", "--wait", uuid)
    books.settled(pair_cloud)


def row_of(cloud: Cloud, uuid: str) -> books.Row:
    """Its record."""
    return next(row for row in books.rows(cloud) if row.uuid == uuid)


def comes_up(cloud: Cloud, uuid: str) -> None:
    """It says so, and that this is the first time, on the disk it has."""

    def said() -> list[str]:
        return re.findall(rf"boots=(\d+)\s+{READY}", cloud.do("console", "log", "show", uuid))

    eventually("it is up", said, 60, 1)
    assert said() == ["1"]


def test_the_stock_client_rebuilds_a_real_guest(pair_cloud, guest):
    cloud = pair_cloud
    comes_up(cloud, guest)
    cloud.do("server", "rebuild", "--wait", "--name", "evacuee-two", "--property", "a=b", guest)
    comes_up(cloud, guest)  # for the first time, again
    now = cloud.openstack("server", "show", guest)
    assert (now["status"], now["name"], now["properties"]) == ("ACTIVE", "evacuee-two", {"a": "b"})

    cloud.do("server", "stop", guest)
    eventually("it is off", lambda: row_of(cloud, guest).vm_state == "stopped", 60)
    cloud.do("server", "rebuild", "--wait", guest)
    books.settled(cloud)
    assert row_of(cloud, guest).vm_state == "stopped"
    cloud.do("server", "start", guest)
    comes_up(cloud, guest)
    books.settled(cloud)
    books.check(cloud)


def test_a_real_guest_of_a_machine_that_died_runs_elsewhere_and_only_there(pair_cloud, guest):
    cloud = pair_cloud
    source = row_of(cloud, guest).host
    cloud.kill(source)
    cloud.libvirtd(source).stop(signal.SIGKILL)
    cloud.libvirtd(source).destroy_all()
    assert cloud.libvirtd(source).qemu_pids() == []
    force(cloud, source, "--down")
    try:
        cloud.do(*OLD, "server", "evacuate", guest, admin=True)
        eventually("it is elsewhere", lambda: row_of(cloud, guest).host != source, 60)

        now = row_of(cloud, guest)
        assert (now.host != source, now.vm_state, now.task_state) == (True, "active", None)
        comes_up(cloud, guest)
        assert guest in books.guests(cloud, now.host)
    finally:
        cloud.up()
        books.settled(cloud)
        force(cloud, source, "--up")
    assert guest not in books.guests(cloud, source)
    assert not cloud.state.path("hosts", source, "state", "guests", guest).exists()
    books.check(cloud)
