"""Stopping a server: the grace period, and what follows it."""

from __future__ import annotations

import pytest

from tests.flow import stories

STORY = stories.STORIES["stop"]


def test_stop_reaches_the_guest_and_ends_stopped(api, cloud):
    stories.runs_through(STORY, api, cloud)


def test_stop_is_refused_to_those_who_may_not_and_to_a_locked_server(api, admin, stranger, reader, cloud):
    stories.is_refused(STORY, api, admin, stranger, reader, cloud)


def test_stop_in_the_wrong_state_is_a_conflict(api, cloud):
    stories.is_refused_in_the_wrong_state(STORY, api, cloud)


def test_stop_that_fails_leaves_the_server_usable(api, admin, cloud):
    stories.failure_leads_out(STORY, api, admin, cloud)


def test_stop_waits_for_a_hypervisor_that_comes_back(api, cloud):
    stories.hypervisor_comes_back(STORY, api, cloud)


def test_a_guest_that_hears_the_signal_shuts_itself_down(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    calls = [verb for verb, _ in cloud.host_of(server_id).driver.calls]
    assert calls.index("save_timer") < calls.index("signal_shutdown")
    assert "power_off" not in calls
    details = stories.last_action(admin, server_id)["events"][0]["details"]
    assert details.startswith("guest shut down in 0.")


def test_a_guest_that_ignores_every_signal_is_forced_off_at_the_deadline(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT, settings.SHUTDOWN_RETRY_INTERVAL = 1, 0.3
    server_id = cloud.boot(api)
    driver = cloud.host_of(server_id).driver
    driver.faults.shutdown(ignore=True)
    stories.lead(api, cloud, server_id, ("stop",))
    assert stories.last_action(admin, server_id)["events"][0]["details"] == "forced off after 1 s, 4 signals (acpi)"
    stories.true_to_the_guest(cloud, server_id)


def test_a_second_signal_reaches_a_guest_that_missed_the_first(api, admin, cloud, settings):
    settings.SHUTDOWN_RETRY_INTERVAL = 0.1
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.shutdown(skip=1)
    stories.lead(api, cloud, server_id, ("stop",))
    assert stories.last_action(admin, server_id)["events"][0]["details"].endswith(", 2 signals (acpi)")


def test_an_image_that_wants_no_grace_is_switched_off_at_once(api, admin, cloud):
    cloud.image.properties = {"os_shutdown_timeout": "0"}
    cloud.image.save()
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    assert "signal_shutdown" not in [verb for verb, _ in cloud.host_of(server_id).driver.calls]
    assert stories.last_action(admin, server_id)["events"][0]["details"] == "forced off at once"


def test_a_restarted_host_gives_the_guest_what_is_left_of_its_time_and_no_more(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT, settings.SHUTDOWN_RETRY_INTERVAL = 1, 0.2
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    host.driver.faults.fail("power_off", error=stories.Killed)
    stories.act(api, server_id, STORY.body)
    with pytest.raises(stories.Killed):
        cloud.work()
    signals = _signals(host)
    assert signals

    host.restart()
    cloud.work()

    assert stories.states(cloud, server_id) == ("stopped", None)
    assert _signals(host) == signals  # its second had passed
    assert stories.last_action(admin, server_id)["events"][0]["details"] == "forced off after 1 s, 5 signals (acpi)"


def test_a_server_that_was_never_built_cannot_be_stopped(api, cloud):
    cloud.hosts["host1"].driver.faults.fail("spawn", times=-1)
    cloud.hosts["host2"].driver.faults.fail("spawn", times=-1)
    server_id = cloud.boot(api)
    assert stories.states(cloud, server_id) == ("error", None)
    answer = stories.act(api, server_id, STORY.body)
    text = f"Instance {server_id} is in an invalid state for 'stop'"
    assert (answer.status_code, stories.message(answer)) == (409, text)
    assert stories.states(cloud, server_id) == ("error", None)


def _signals(host):
    return [verb for verb, _ in host.driver.calls].count("signal_shutdown")
