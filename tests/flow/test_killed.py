"""Hosts and conductors that are killed, and what the server and its history say then.

That every action ends well whenever its host is killed is shown by the simulation (tests/simulation).
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Service, Step
from compute.operations import action, journal, recovery, registry
from compute.operations.action import OnRestart
from tests.flow import stories
from tests.flow.stories import begin, ends_well, only_step


def test_a_conductor_killed_while_it_looks_for_another_host_is_followed_by_another_one(api, cloud):
    cloud.add_host("host1b", "cell1", memory_mb=200_000)
    cloud.hosts["host2"].report()
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    cloud.hosts["host1"].driver.faults.fail("spawn")
    server_id = begin("create", api, cloud)
    cloud.hosts["host1"].run(only_step(cloud).pk)
    search = only_step(cloud)
    with target_cell(cloud.cells["cell1"]):
        assert journal.claim(search.pk, "nova-conductor@dead", "gone")
        assert recovery.recover_dead_conductors("nova-conductor@me") == 0  # it may only be slow
        Step.objects.filter(pk=search.pk).update(started_at=timezone.now() - timedelta(hours=1))
        Service.objects.create(binary="nova-conductor", host="dead", last_seen_up=timezone.now())
        assert recovery.recover_dead_conductors("nova-conductor@me") == 0  # it lives
        Service.objects.filter(host="dead").delete()
        assert recovery.recover_dead_conductors("nova-conductor@me") == 1
    cloud.work()
    assert cloud.row(server_id).host == "host1b"
    ends_well("create", cloud, server_id)


@pytest.mark.parametrize(("name", "outcome"), [("pause", "done"), ("stop", "guest shut down")])
def test_an_action_whose_host_was_killed_meanwhile_ends_with_its_own_words(name, outcome, api, admin, cloud):
    server_id = begin(name, api, cloud)
    host = cloud.host_of(server_id)
    host.begin(only_step(cloud).pk)
    host.restart()
    assert stories.last_action(admin, server_id)["events"][0]["details"] == "run again after a restart"

    cloud.work()

    assert cloud.history(server_id)[-1].outcome.startswith(outcome)
    assert "restart" not in (stories.last_action(admin, server_id)["events"][0]["details"] or "")


def test_an_action_that_was_tried_again_does_not_end_with_why(api, cloud):
    server_id = begin("pause", api, cloud)
    cloud.host_of(server_id).driver.go_away()
    cloud.work()
    cloud.host_of(server_id).driver.come_back()
    stories.later(cloud)
    cloud.work()
    assert cloud.history(server_id)[-1].outcome == "done"


def test_a_conductor_that_deregistered_with_a_running_step_is_followed_at_once(api, cloud):
    """At its shutdown timeout, say."""
    server_id = begin("create image", api, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("snapshot")
    host.run(only_step(cloud).pk)
    with target_cell(host.cell):
        assert journal.claim(only_step(cloud).pk, "nova-conductor@late", "gone")
        late = Service.objects.create(binary="nova-conductor", host="late", last_seen_up=timezone.now())
        assert recovery.recover_dead_conductors("nova-conductor@me") == 0
        late.ended_at = timezone.now()
        late.save()
        assert recovery.recover_dead_conductors("nova-conductor@me") == 1
    cloud.work()
    stories.settled(cloud)


def test_a_step_that_may_not_be_rerun_ends_with_a_fault_the_user_can_read(api, admin, cloud, monkeypatch):
    server_id = begin("pause", api, cloud)
    spec = registry.named("Pause").steps[0]
    rule = type(spec)(spec.name, spec.event, on_restart=OnRestart.FAIL)
    monkeypatch.setattr(type(registry.named("Pause")), "steps", (rule,))
    host = cloud.host_of(server_id)
    host.begin(only_step(cloud).pk)
    assert host.restart() == 1
    assert stories.states(cloud, server_id) == ("active", None)
    assert "was restarted" in stories.last_action(admin, server_id)["events"][0]["details"]
    stories.settled(cloud)


def test_a_step_that_kills_its_host_every_time_is_given_up(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    for _ in range(action.MAX_TRIES):
        host.begin(only_step(cloud).pk)
        host.restart()
    assert stories.states(cloud, server_id) == ("active", None)
    assert cloud.history(server_id)[-1].message == "Error"
    stories.settled(cloud)


def test_a_failure_worth_trying_again_is_given_up_in_the_end(api, cloud):
    server_id = begin("pause", api, cloud)
    driver = cloud.host_of(server_id).driver
    driver.go_away()
    for _ in range(action.MAX_TRIES):
        stories.later(cloud)
        cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    driver.come_back()
    stories.lead(api, cloud, server_id, ("pause",))
    stories.settled(cloud)
