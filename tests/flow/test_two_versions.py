"""While hosts of two versions work, the scheduler picks none that is too old for what it would have to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cells.context import target_cell
from compute.actions.create import Create
from compute.actions.migrate_live import MigrateLive
from compute.models import Service
from compute.operations.step import On
from compute.virt.fake.faults import ALWAYS
from tests.flow import stories
from tests.flow.stories import act, message
from tests.flow.two_hosts import LIVE, booted, homes

NEW = 1000
NONE = "No valid host was found. No host passed the filter for: service version (the hosts are not upgraded yet)."


def new_step(monkeypatch, action, *names):
    """These steps are those of a newer version."""
    steps = tuple(replace(spec, known_since=NEW) if spec.name in names else spec for spec in action.steps)
    assert steps != action.steps
    monkeypatch.setattr(action, "steps", steps)


def upgrade(cloud, *names):
    """What the heartbeat of an upgraded host reports."""
    for name in names:
        with target_cell(cloud.hosts[name].cell):
            assert Service.objects.filter(host=name).update(version=NEW)


@pytest.fixture
def hosts(cloud):
    """host1 and host3 in cell1, host2 in cell2."""
    cloud.add_host("host3", "cell1")
    return cloud.hosts


def test_a_boot_with_a_new_step_goes_to_an_upgraded_host_of_any_cell(monkeypatch, api, cloud, hosts):
    new_step(monkeypatch, Create, "build")
    upgrade(cloud, "host2")
    servers = [cloud.boot(api) for _ in range(2)]
    assert {cloud.row(server).host for server in servers} == {"host2"}
    upgrade(cloud, "host1", "host3")
    more = [cloud.boot(api) for _ in range(2)]
    assert {cloud.row(server).host for server in more} == {"host1", "host3"}, "they are empty"
    stories.settled(cloud)


def test_a_boot_that_no_host_knows_ends_with_a_fault_that_names_the_upgrade(monkeypatch, api, admin, cloud, hosts):
    new_step(monkeypatch, Create, "build")
    servers = [cloud.boot(api), cloud.boot(admin, host="host1"), cloud.boot(admin, availability_zone="nova:host1")]
    for server in servers:
        shown = admin.get(f"/servers/{server}").json()["server"]
        assert (shown["status"], shown["fault"]["message"]) == ("ERROR", NONE)
        assert homes(cloud, server) == []


def test_a_boot_that_failed_is_tried_again_on_an_upgraded_host(monkeypatch, api, cloud):
    cloud.hosts["host1"].driver.faults.fail("spawn", times=ALWAYS)
    cloud.add_host("host3", "cell1", memory_mb=200_000)  # it would be tried before host4
    cloud.add_host("host4", "cell1", memory_mb=100_000)
    new_step(monkeypatch, Create, "build")
    upgrade(cloud, "host1", "host4")
    server = cloud.boot(api)
    assert [action for action, _ in cloud.hosts["host1"].driver.calls].count("spawn") == 1
    assert cloud.row(server).host == "host4"
    stories.settled(cloud)


def test_a_server_moves_to_an_upgraded_host_only(monkeypatch, admin, cloud):
    server = booted(admin, cloud)
    cloud.add_host("host4", "cell1")
    new_step(monkeypatch, MigrateLive, *(spec.name for spec in MigrateLive.steps if spec.on is On.DEST))
    refused = act(admin, server, LIVE)
    assert refused.status_code == 409
    assert "the hosts of its cell cannot do it before an upgrade (service version 1; 1000" in message(refused)

    upgrade(cloud, "host4")
    assert act(admin, server, LIVE).status_code == 202
    cloud.work()
    assert homes(cloud, server) == ["host4"]

    assert act(admin, server, LIVE).status_code == 202
    cloud.work()
    assert homes(cloud, server) == ["host4"], "the others are too old"
    assert cloud.row(server).task_state is None
    stories.settled(cloud)
