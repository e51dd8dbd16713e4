"""Rebooting a server, softly and hard."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.actions.reboot import Reboot
from compute.virt.base import PowerState
from compute.virt.fake.effects import Effect
from tests.flow import stories

SOFT, HARD = stories.STORIES["soft reboot"], stories.STORIES["hard reboot"]
both = pytest.mark.parametrize("story", [SOFT, HARD], ids=["soft", "hard"])


@both
def test_a_reboot_reaches_the_guest_and_ends_active(story, api, cloud):
    server_id = stories.runs_through(story, api, cloud)
    assert "boots=2" in cloud.host_of(server_id).driver.console_output(server_id)


@both
def test_a_reboot_is_refused_to_those_who_may_not_and_to_a_locked_server(
    story, api, admin, stranger, reader, cloud
):
    stories.is_refused(story, api, admin, stranger, reader, cloud)


@both
def test_a_reboot_that_fails_leaves_the_server_usable(story, api, admin, cloud):
    stories.failure_leads_out(story, api, admin, cloud)


@both
def test_a_reboot_waits_for_a_hypervisor_that_comes_back(story, api, cloud):
    stories.hypervisor_comes_back(story, api, cloud)


@both
def test_a_reboot_killed_between_the_work_and_its_record_happens_once(story, api, cloud):
    server_id = stories.begin("soft reboot" if story is SOFT else "hard reboot", api, cloud)
    host = cloud.host_of(server_id)
    step = host.begin(stories.only_step(cloud).pk)
    with target_cell(host.cell):
        Reboot().reboot(Reboot().context(step, host.driver))
    before = [one.effect for one in host.driver.effects(server_id)]
    assert before.count(Effect.REBOOTED) == 1
    presses = host.driver.calls.count(("signal_shutdown", server_id))

    assert host.restart() == 1
    cloud.work()

    assert [one.effect for one in host.driver.effects(server_id)] == before
    assert host.driver.calls.count(("signal_shutdown", server_id)) == presses
    assert stories.states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def test_two_reboots_are_two(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("soft reboot", "hard reboot", "hard reboot"))
    happened = [one.effect for one in cloud.host_of(server_id).driver.effects(server_id)]
    assert happened.count(Effect.REBOOTED) == 3
    assert happened.count(Effect.OFF_BY_GUEST) == 1


@both
def test_a_status_says_which_reboot_is_going_on(story, api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, story.body)
    shown = api.get(f"/servers/{server_id}").json()["server"]["status"]
    assert shown == {"SOFT": "REBOOT", "hard": "HARD_REBOOT"}[story.body["reboot"]["type"]]


def test_a_soft_reboot_in_the_wrong_state_is_a_conflict(api, cloud):
    stories.is_refused_in_the_wrong_state(SOFT, api, cloud)


def test_a_soft_reboot_of_a_deaf_guest_falls_back_to_hard_and_says_so(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT, settings.SHUTDOWN_RETRY_INTERVAL = 1, 1
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.shutdown(ignore=True)
    stories.lead(api, cloud, server_id, ("soft reboot",))
    details = stories.last_action(admin, server_id)["events"][0]["details"]
    assert details.startswith("fell back to a hard reboot after 1 s")
    stories.true_to_the_guest(cloud, server_id)


def test_a_hard_reboot_takes_a_server_from_a_pause_that_nobody_began(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"pause": None})
    assert stories.act(api, server_id, HARD.body).status_code == 202
    assert stories.states(cloud, server_id) == ("active", "rebooting_hard")
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert "pause" not in [verb for verb, _ in cloud.host_of(server_id).driver.calls]
    create, pause, reboot = cloud.history(server_id)
    assert (pause.message, pause.outcome) == ("Error", "preempted by a hard reboot")
    assert (create.message, reboot.message) == (None, None)
    stories.settled(cloud)


def test_a_pause_that_is_running_when_a_hard_reboot_comes_does_not_win(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    stories.act(api, server_id, {"pause": None})
    pause = host.begin(cloud.queued()[0][1].pk)
    stories.act(api, server_id, HARD.body)
    [(_, reboot)] = cloud.queued()
    assert not host.run(reboot.pk)  # one step of a server at a time

    host.finish(pause)
    cloud.work()

    assert stories.states(cloud, server_id) == ("active", None)
    assert host.driver.power_state(server_id) is PowerState.RUNNING
    assert cloud.history(server_id)[1].outcome.startswith("preempted")
    stories.settled(cloud)


def test_a_hard_reboot_leads_out_of_error(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(admin, server_id, {"os-resetState": {"state": "error"}})
    stories.lead(api, cloud, server_id, ("hard reboot",))
    stories.true_to_the_guest(cloud, server_id)


@pytest.mark.parametrize("kind", [None, {}, {"type": "GENTLE"}, {"type": None}, {"type": "SOFT", "more": 1}])
def test_a_reboot_of_no_known_kind_is_a_bad_request(kind, api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, {"reboot": kind}).status_code == 400
