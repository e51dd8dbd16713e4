"""A server that is put back again and again is left alone until it is quiet, and everybody can see that."""

from __future__ import annotations

from datetime import timedelta

import pytest

from compute.models import InstanceAction
from compute.virt.base import PowerState
from tests.flow import stories
from tests.flow.powers import counted, do, entries, guest, notice, sync, tasks


@pytest.fixture(autouse=True)
def _three_times_in_a_minute(settings):
    settings.POWER_TRUTH, settings.POWER_FLAPS, settings.POWER_FLAP_WINDOW = "database", 3, 60


def fight(cloud, server_id, look=sync):
    """Somebody switches it off, again."""
    do(cloud, server_id, "off")
    look(cloud, server_id)
    cloud.work()


def minutes_pass(cloud, server_id, seconds=61):
    """What is in its history was so long ago."""
    for action in cloud.history(server_id):
        rows = InstanceAction.objects.using(action._state.db).filter(pk=action.pk)
        rows.update(started_at=action.started_at - timedelta(seconds=seconds),
                    updated_at=action.updated_at - timedelta(seconds=seconds))  # fmt: skip


@pytest.fixture
def flapping(api, cloud):
    """A server that is left alone."""
    server_id = cloud.boot(api)
    for _ in range(4):
        fight(cloud, server_id)
    return server_id


@pytest.mark.parametrize("look", [notice, sync], ids=["event", "sync"])
def test_a_server_that_is_put_back_too_often_is_left_alone_and_says_so_once(look, api, admin, cloud):
    server_id, before = cloud.boot(api), counted("power_flaps_total")
    for _ in range(3):
        fight(cloud, server_id, look)
        assert guest(cloud, server_id) == PowerState.RUNNING
    for _ in range(3):
        fight(cloud, server_id, look)
        assert guest(cloud, server_id) == cloud.row(server_id).power_state == PowerState.SHUTDOWN
        assert stories.states(cloud, server_id) == ("active", None)
    assert tasks(cloud, server_id) == ["create", "start", "start", "start", "power_sync"]
    assert counted("power_flaps_total") == before + 1
    shown = stories.last_action(admin, server_id)
    assert shown["message"] == "Error"
    assert "restored 3 times within 60 s; suspended until nothing changes for 60 s" in shown["events"][0]["details"]
    stories.settled(cloud)


def test_when_it_has_been_quiet_for_long_enough_it_is_put_back_again(cloud, flapping):
    minutes_pass(cloud, flapping, 40)
    do(cloud, flapping, "on")  # it still changes: its time begins anew
    sync(cloud, flapping)
    do(cloud, flapping, "off")
    sync(cloud, flapping)
    minutes_pass(cloud, flapping, 40)
    assert sync(cloud, flapping) == 0
    minutes_pass(cloud, flapping, 21)
    assert sync(cloud, flapping) == 1
    cloud.work()
    assert guest(cloud, flapping) == PowerState.RUNNING
    assert len(entries(cloud, flapping, "PowerFlaps")) == 1


def test_a_restart_of_the_host_forgets_nothing(cloud, flapping):
    cloud.host_of(flapping).restart()
    assert sync(cloud, flapping) == 0
    assert guest(cloud, flapping) == PowerState.SHUTDOWN


def test_others_are_put_back_meanwhile_and_so_is_what_its_user_asks_for(api, cloud, flapping):
    other = cloud.boot(api)
    fight(cloud, other)
    assert guest(cloud, other) == PowerState.RUNNING
    stories.lead(api, cloud, flapping, ("stop", "start"))
    stories.true_to_the_guest(cloud, flapping)


def test_what_is_followed_is_followed_however_often(api, cloud, settings):
    settings.POWER_TRUTH = "hypervisor"
    server_id = cloud.boot(api)
    for change in ("off", "on") * 5:
        do(cloud, server_id, change)
        notice(cloud, server_id)
        stories.true_to_the_guest(cloud, server_id)


def test_without_a_limit_it_is_put_back_always(api, cloud, settings):
    settings.POWER_FLAPS = 0
    server_id = cloud.boot(api)
    for _ in range(6):
        fight(cloud, server_id)
        stories.true_to_the_guest(cloud, server_id)
