"""Whose word counts when a guest is shut down, and what becomes of the others who wait for it."""

from __future__ import annotations

import pytest

from compute.models import Flavor
from tests.conftest import client
from tests.flow import one_host, stories
from tests.flow.graces import FORCED, HARD, OWN, SOFT, ask, deaf, killed, length, nobody_waits, outcomes, signals, waits
from tests.flow.stories import Killed, act

BODIES = {"os-stop": {}, "rescue": {}, "resize": {"flavorRef": "2"}, "shelve": {}, "migrate": {}}
ENDS = {"os-stop": "stopped", "rescue": "rescued", "resize": "resized", "shelve": "shelved_offloaded",
        "migrate": "resized"}  # fmt: skip


@pytest.fixture
def manager(cells):
    """Who may also migrate."""
    return client("manager", "member")


@pytest.fixture
def large(cloud):
    """A larger flavor."""
    return Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=1, memory_mb=1024, disk_gb=2)


# -- in the body of an action


def test_a_stop_waits_without_a_thread_and_ends_with_the_words_of_its_clock(api, admin, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(delay=0.3)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
        assert waits(host) == ["stop.power_off"]
        nobody_waits(cloud, host)
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert stories.last_action(admin, server_id)["events"][0]["details"].startswith("guest shut down in ")
    stories.settled(cloud)


@pytest.mark.parametrize("key", BODIES)
def test_hard_signals_nobody_and_waits_for_nobody(key, manager, cloud, large):
    server_id = one_host.booted(manager, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(manager, cloud, server_id, {key: BODIES[key] | HARD})
    assert stories.states(cloud, server_id) == (ENDS[key], None)
    assert signals(host) == 0


@pytest.mark.parametrize("key", BODIES)
def test_a_request_says_how_many_seconds_its_guest_has(key, manager, cloud, large):
    server_id = one_host.booted(manager, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(manager, cloud, server_id, {key: BODIES[key] | {"shutdown_timeout": "1"}})
        [step] = host.waiting()
        assert length(step) == 1
        cloud.work_until(lambda: cloud.row(server_id).task_state is None)
    assert stories.states(cloud, server_id) == (ENDS[key], None)
    assert signals(host) == 1


@pytest.mark.parametrize("key", BODIES)
def test_a_host_killed_while_it_pulls_the_plug_pulls_it_again(key, manager, cloud, large):
    server_id = one_host.booted(manager, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("power_off", error=Killed)
    with pytest.raises(Killed):
        ask(manager, cloud, server_id, {key: BODIES[key] | HARD})
    assert host.restart() == 1
    cloud.work()
    assert stories.states(cloud, server_id) == (ENDS[key], None)
    stories.settled(cloud)


WORDS = [  # request, server, image, operator -> seconds
    ({"shutdown_timeout": 40}, "30", "20", 40), (SOFT | {"shutdown_timeout": 40}, "30", "20", 40),
    (SOFT, "30", "20", 30), (None, "30", "20", 30), (SOFT, None, "20", 20), (None, None, "20", 20),
    (SOFT, None, None, 60), (None, None, "nonsense", 60), ({"shutdown_timeout": 40}, None, None, 40),
    ({"shutdown_timeout": 40}, "0", "0", 40),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "own", "image", "seconds"), WORDS, ids=str)
def test_the_strongest_word_counts(asked, own, image, seconds, api, cloud):
    if image is not None:
        cloud.image.properties = {"os_shutdown_timeout": image}
        cloud.image.save()
    server_id, host = deaf(api, cloud, metadata={} if own is None else {OWN: own})
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": asked})
        [step] = host.waiting()
        assert length(step) == seconds
        ask(api, cloud, server_id, {"os-stop": HARD})


def test_a_server_that_wants_no_grace_gets_none_unless_a_request_says_so(api, cloud):
    server_id, host = deaf(api, cloud, **{OWN: 0})
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": SOFT})
    assert (stories.states(cloud, server_id), signals(host)) == (("stopped", None), 0)


def test_a_grace_period_that_is_changed_counts_from_the_next_shutdown_on(api, cloud):
    server_id, host = deaf(api, cloud, **{OWN: 30})
    path = f"/servers/{server_id}"
    with host.with_watcher():
        assert api.send("put", path, {"server": {OWN: 50}}).status_code == 200
        ask(api, cloud, server_id, {"os-stop": None})
        [step] = host.waiting()
        assert length(step) == 50
        assert api.send("put", path, {"server": {OWN: 1}}).status_code == 200
        cloud.work()
        assert [length(step) for step in host.waiting()] == [50]
        ask(api, cloud, server_id, {"os-stop": HARD})
        cloud.work_until(lambda: not host.waiting())  # the watcher tells who waited
        ask(api, cloud, server_id, {"os-start": None})
        assert api.delete(f"{path}/metadata/{OWN}").status_code == 204
        ask(api, cloud, server_id, {"os-stop": None})
        [step] = host.waiting()
        assert length(step) == 60
        ask(api, cloud, server_id, {"os-stop": HARD})


# -- whoever is in a hurry


def test_a_hard_stop_ends_a_clock_that_somebody_else_started(api, cloud):
    server_id, host = deaf(api, cloud)
    timer = host.driver.begin_shutdown(server_id, 60, 10)
    assert timer is not None
    assert timer.runs
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": HARD})
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert outcomes(cloud, server_id) == [("stop", FORCED)]


def test_a_hard_stop_ends_the_wait_of_another_stop_and_both_say_how(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
        again = act(api, server_id, {"os-stop": SOFT})
        assert again.status_code == 409  # as in Nova
        assert waits(host) == ["stop.power_off"]
        ask(api, cloud, server_id, {"os-stop": HARD})
        nobody_waits(cloud, host)
    assert outcomes(cloud, server_id) == [("stop", f"preempted: {FORCED}"), ("stop", FORCED)]
    assert stories.states(cloud, server_id) == ("stopped", None)
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)


def test_a_hard_stop_takes_the_place_of_one_that_nobody_began(api, cloud):
    server_id, host = deaf(api, cloud)
    assert act(api, server_id, {"os-stop": None}).status_code == 202
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": HARD})
    assert outcomes(cloud, server_id) == [("stop", "preempted by a hard stop"), ("stop", "forced off at once")]
    assert stories.states(cloud, server_id) == ("stopped", None)
    stories.settled(cloud)


@pytest.mark.parametrize("when", one_host.MOMENTS)
def test_a_host_killed_at_a_hard_stop_that_ends_another_ends_right(when, api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
    act(api, server_id, {"os-stop": HARD})
    killed(cloud, host, when)
    with host.with_watcher():
        nobody_waits(cloud, host)
    assert stories.states(cloud, server_id) == ("stopped", None)
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)


def test_a_hard_reboot_ends_the_grace_of_a_stop_and_the_stop_says_why(api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
        ask(api, cloud, server_id, {"reboot": {"type": "HARD"}})
        nobody_waits(cloud, host)
    assert stories.states(cloud, server_id) == ("active", None)
    assert outcomes(cloud, server_id) == [("stop", f"preempted: {FORCED}"), ("reboot", "done")]
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


@pytest.mark.parametrize("when", one_host.MOMENTS)
def test_a_host_killed_at_a_hard_reboot_that_ends_a_stop_ends_right(when, api, cloud):
    server_id, host = deaf(api, cloud)
    with host.with_watcher():
        ask(api, cloud, server_id, {"os-stop": None})
    act(api, server_id, {"reboot": {"type": "HARD"}})
    killed(cloud, host, when)
    with host.with_watcher():
        nobody_waits(cloud, host)
    assert stories.states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)
