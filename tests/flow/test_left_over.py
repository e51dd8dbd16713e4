"""A guest that came back after its server had left its host: the verb of a worker that had lost its claim came late."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Service
from compute.power import sync as power_sync
from compute.virt.base import HypervisorUnavailable, PowerState
from tests.flow import one_host, stories
from tests.flow.powers import sync
from tests.flow.stories import act


@pytest.fixture
def server_id(api, cloud):
    """A server in cell1, where there are two hosts."""
    return one_host.booted(api, cloud)


def look(cloud, host):
    """The periodic look of a host the server is not on."""
    with target_cell(host.cell):
        return power_sync.sync(host.name, host.driver)


def spawned_late(cloud, host, guest):
    """A worker that was stopped before the effect of its step wakes."""
    image = replace(guest.image, checksum="", size=0)
    host.driver.spawn(replace(guest, image=image), lambda target: target.write_bytes(bytes(512)))
    assert host.driver.power_state(guest.uuid) is PowerState.RUNNING


def test_a_guest_that_is_spawned_after_its_server_was_deleted_is_turned_off(api, cloud, server_id, caplog):
    host, guest = cloud.host_of(server_id), cloud.row(server_id).as_guest()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    spawned_late(cloud, host, guest)
    look(cloud, host)
    assert host.driver.power_state(server_id) is PowerState.SHUTDOWN
    assert "power.orphan_powered_off" in caplog.text
    assert server_id in host.driver.guests()  # its disk is for people to look at
    assert look(cloud, host) == 0


def test_a_second_guest_of_a_server_that_moved_away_is_turned_off(api, admin, cloud, server_id):
    source, guest = cloud.host_of(server_id), cloud.row(server_id).as_guest()
    assert act(admin, server_id, {"os-migrateLive": {"host": None, "block_migration": "auto"}}).status_code == 202
    cloud.work()
    home = cloud.host_of(server_id)
    assert home.name != source.name
    spawned_late(cloud, source, guest)
    for host in (source, home):
        look(cloud, host)
    assert source.driver.power_state(server_id) is PowerState.SHUTDOWN
    assert home.driver.power_state(server_id) is PowerState.RUNNING
    assert stories.states(cloud, server_id) == ("active", None)


def test_a_guest_that_moves_at_this_moment_is_left_alone(api, admin, cloud, server_id):
    source, guest = cloud.host_of(server_id), cloud.row(server_id).as_guest()
    assert act(admin, server_id, {"os-migrateLive": {"host": None, "block_migration": "auto"}}).status_code == 202
    other = next(host for host in cloud.hosts.values() if host.cell == source.cell and host.name != source.name)
    spawned_late(cloud, other, guest)
    look(cloud, other)
    assert other.driver.power_state(server_id) is PowerState.RUNNING


def test_a_host_that_was_renamed_turns_nobody_off(api, cloud, server_id):
    """Its servers live, as the record says, on a host of the old name, which is not up any more."""
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        long_ago = timezone.now() - timedelta(hours=1)
        Service.objects.filter(host=host.name).update(last_seen_up=long_ago, created_at=long_ago)
    host.name = "renamed"
    look(cloud, host)
    assert host.driver.power_state(server_id) is PowerState.RUNNING


def test_a_guest_that_is_on_record_nowhere_is_left_alone(api, cloud, server_id):
    host = cloud.host_of(server_id)
    stranger = replace(cloud.row(server_id).as_guest(), uuid="00000000-0000-4000-8000-00000000dead")
    spawned_late(cloud, host, stranger)
    sync(cloud, server_id)
    assert host.driver.power_state(stranger.uuid) is PowerState.RUNNING


def test_a_left_over_that_cannot_be_turned_off_now_is_turned_off_by_the_next_sync(api, cloud, server_id):
    host, guest = cloud.host_of(server_id), cloud.row(server_id).as_guest()
    api.delete(f"/servers/{server_id}")
    cloud.work()
    spawned_late(cloud, host, guest)
    host.driver.faults.fail("power_off", error=HypervisorUnavailable)
    look(cloud, host)
    assert host.driver.power_state(server_id) is PowerState.RUNNING
    look(cloud, host)
    assert host.driver.power_state(server_id) is PowerState.SHUTDOWN
