"""A guest that somebody switched behind our back is put back: as if it had been asked for, and by nobody."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import guest_shutdown
from compute.models import Service
from compute.operations import registry, runner
from compute.virt.base import GuestInvalidState, PowerState
from tests.flow import stories
from tests.flow.going_down import one_host
from tests.flow.powers import counted, do, entries, notice, sync, tasks
from tests.flow.stories import Killed, act
from tests.flow.test_power_update import say


@pytest.fixture(autouse=True)
def _the_record_is_right(settings):
    settings.POWER_TRUTH = "database"


@pytest.fixture
def off(api, cloud):
    """A server that is ACTIVE, and whose guest somebody has just switched off."""
    server_id = cloud.boot(api)
    do(cloud, server_id, "off")
    return server_id


def is_back(cloud, server_id):
    """As if nothing had happened."""
    assert stories.states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def service(cloud, server_id, **columns):
    """What the host's record says."""
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        Service.objects.filter(host=host.name).update(**columns)


def test_it_is_an_action_like_one_that_was_asked_for(api, admin, cloud, off):
    before = counted("power_mismatches_total", found_by="event", outcome="restored")
    notice(cloud, off)
    assert stories.states(cloud, off) == ("active", "powering-on")
    assert cloud.row(off).power_state == PowerState.SHUTDOWN
    cloud.work()
    is_back(cloud, off)
    shown = stories.last_action(admin, off)
    assert (shown["action"], shown["message"], shown["user_id"]) == ("start", None, "")
    assert shown["request_id"].startswith("req-")
    [event] = shown["events"]
    assert (event["event"], event["result"]) == ("compute_power_sync", "Success")
    assert event["details"] == (
        "power sync: restored (on); the guest is shutdown: shutdown; power authority database (its host)"
    )
    assert cloud.history(off)[-1].outcome == event["details"]
    assert counted("power_mismatches_total", found_by="event", outcome="restored") == before + 1


def test_the_guest_is_looked_at_again_before_it_is_switched(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    do(cloud, server_id, "on")
    assert sync(cloud, server_id) == 1
    do(cloud, server_id, "off")
    host = cloud.host_of(server_id)
    host.driver.calls.clear()
    cloud.work()
    assert {verb for verb, _ in host.driver.calls} == {"power_state"}
    assert stories.states(cloud, server_id) == ("stopped", None)
    assert "already off" in cloud.history(server_id)[-1].outcome
    stories.settled(cloud)


def test_a_guest_that_is_unknown_by_then_is_left_alone(api, cloud, off):
    sync(cloud, off)
    host = cloud.host_of(off)
    host.driver.destroy(off)
    host.driver.calls.clear()
    cloud.work()
    assert {verb for verb, _ in host.driver.calls} == {"power_state"}
    assert stories.states(cloud, off) == ("active", None)
    assert "skipped, it is nostate by now" in cloud.history(off)[-1].outcome
    assert sync(cloud, off) == 0


def test_a_guest_that_went_off_before_it_could_be_paused_again_is_off(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("pause",))
    do(cloud, server_id, "unpause")
    sync(cloud, server_id)
    do(cloud, server_id, "off")
    cloud.work()
    assert stories.states(cloud, server_id) == ("paused", None)
    sync(cloud, server_id)
    assert stories.states(cloud, server_id) == ("stopped", None)
    stories.settled(cloud)


def test_a_server_with_a_task_is_left_to_it(api, cloud, off):
    act(api, off, {"os-stop": None})
    notice(cloud, off)
    assert sync(cloud, off) == 0
    cloud.work()
    assert stories.states(cloud, off) == ("stopped", None)
    assert tasks(cloud, off) == ["create", "stop"]


def test_a_power_update_that_waits_for_its_turn_goes_first(api, cloud, off):
    cloud.host_of(off).driver.faults.accept()
    say(cloud, off, "POWER_OFF")
    assert sync(cloud, off) == 1
    assert cloud.row(off).power_state == PowerState.SHUTDOWN
    assert not entries(cloud, off, "RestorePowerState")
    cloud.work()
    assert stories.states(cloud, off) == ("stopped", None)
    assert sync(cloud, off) == 0
    stories.settled(cloud)


# -- a power-update that is on its way: Ironic keeps its lock until the event is answered


@pytest.fixture
def on(api, cloud, settings):
    """A server that is stopped, and whose machine another controller has just switched on. The truth is `nova`."""
    settings.POWER_TRUTH = "nova"
    for host in cloud.hosts.values():
        host.driver.faults.accept()
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    cloud.host_of(server_id).driver.switch(server_id, on=True)
    return server_id


def stays_on(cloud, server_id, why):
    """Its machine was never switched, and the put-back says so."""
    driver = cloud.host_of(server_id).driver
    assert driver.power_state(server_id) is PowerState.RUNNING
    assert not {"force_off", "power_off", "begin_shutdown"} & {verb for verb, _ in driver.calls}
    (opened,) = entries(cloud, server_id, "RestorePowerState")
    assert opened.message is None
    assert f"power sync: skipped, {why}" in opened.outcome


def is_followed(cloud, server_id):
    """When the event has come, the record is what the machine does, and the sync finds nothing to do."""
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert sync(cloud, server_id) == 0
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


@pytest.mark.parametrize("truth", ["nova", "database"])
def test_a_machine_that_ironic_still_holds_is_not_put_back_by_a_sync_before_its_event(
    truth, api, cloud, on, settings
):
    settings.POWER_TRUTH = truth
    faults = cloud.host_of(on).driver.faults
    faults.lock(on)
    for _ in range(3):
        assert sync(cloud, on) == 0
    assert not entries(cloud, on, "RestorePowerState")
    say(cloud, on, "POWER_ON")
    faults.lock(on, held=False)
    is_followed(cloud, on)


@pytest.mark.parametrize("when", ["before the step", "between its look and the switch"])
def test_a_machine_that_ironic_holds_when_it_is_to_be_put_back_stays_on(when, api, cloud, on):
    assert sync(cloud, on) == 1
    driver = cloud.host_of(on).driver
    driver.calls.clear()
    if when == "before the step":
        driver.faults.lock(on)
    else:
        look = driver.power_state
        driver.power_state = lambda uuid: [look(uuid), driver.faults.lock(on)][0]
    cloud.work()
    stays_on(cloud, on, "another controller is using its machine")
    assert stories.states(cloud, on) == ("stopped", None)
    say(cloud, on, "POWER_ON")
    driver.faults.lock(on, held=False)
    is_followed(cloud, on)


@pytest.mark.parametrize("when", ["before the step", "during its look"])
def test_a_machine_whose_event_came_after_its_put_back_was_opened_stays_on(when, api, cloud, on):
    assert sync(cloud, on) == 1
    driver = cloud.host_of(on).driver
    driver.calls.clear()
    step = stories.only_step(cloud).pk
    if when == "before the step":
        say(cloud, on, "POWER_ON")
    else:
        look = driver.power_state

        def look_while_the_event_comes(uuid):
            del driver.power_state
            say(cloud, on, "POWER_ON")
            return look(uuid)

        driver.power_state = look_while_the_event_comes
    cloud.host_of(on).run(step)
    stays_on(cloud, on, "POWER_ON of req-")
    is_followed(cloud, on)


def test_a_machine_whose_event_never_comes_is_put_back_by_the_next_sync(api, cloud, on):
    faults = cloud.host_of(on).driver.faults
    sync(cloud, on)
    faults.lock(on)
    cloud.work()
    faults.lock(on, held=False)
    assert sync(cloud, on) == 1
    cloud.work()
    assert cloud.host_of(on).driver.power_state(on) is PowerState.SHUTDOWN
    assert stories.states(cloud, on) == ("stopped", None)
    stories.settled(cloud)


def test_who_stops_it_during_the_look_is_newer_than_the_look(api, cloud, off):
    host = cloud.host_of(off)
    look = host.driver.guests

    def looks_while_somebody_stops_it():
        seen = look()
        act(api, off, {"os-stop": None})
        cloud.work()
        return seen

    host.driver.guests = looks_while_somebody_stops_it
    sync(cloud, off)
    cloud.work()
    assert stories.states(cloud, off) == ("stopped", None)
    assert tasks(cloud, off) == ["create", "stop"]


def test_a_user_who_acts_meanwhile_hears_that_it_is_busy_and_a_delete_takes_it(api, cloud, off):
    sync(cloud, off)
    assert act(api, off, {"os-stop": None}).status_code == 409
    assert api.delete(f"/servers/{off}").status_code == 204
    cloud.work()
    assert cloud.row(off).deleted
    stories.settled(cloud)


@pytest.mark.parametrize("moment", ["before", "claimed", "inside", "after the work"])
def test_a_host_that_is_killed_meanwhile_ends_it_in_its_next_life(moment, api, cloud, off):
    sync(cloud, off)
    host = cloud.host_of(off)
    if moment == "inside":
        host.driver.faults.fail("power_on", error=Killed)
        with pytest.raises(Killed):
            cloud.work()
    elif moment != "before":
        step = host.begin(stories.only_step(cloud).pk)
        if moment == "after the work":
            with target_cell(host.cell):
                action = registry.named("RestorePowerState")
                action.restore_power_state(action.context(step, host.driver))
    host.restart()
    cloud.work()
    is_back(cloud, off)


def test_one_that_cannot_be_put_back_is_free_again_and_says_why(api, cloud, off):
    cloud.host_of(off).driver.faults.fail("power_on", error=GuestInvalidState)
    sync(cloud, off)
    cloud.work()
    assert stories.states(cloud, off) == ("active", None)
    failed = cloud.history(off)[-1]
    assert (failed.message, failed.outcome) == ("Error", "power_on failed as injected")
    assert cloud.row(off).power_state == PowerState.SHUTDOWN
    sync(cloud, off)
    cloud.work()
    is_back(cloud, off)


def test_nobody_is_put_back_while_the_hypervisor_is_away(api, cloud, off):
    driver = cloud.host_of(off).driver
    driver.go_away()
    notice(cloud, off)
    with pytest.raises(Exception, match="ordered to be away"):
        sync(cloud, off)
    assert tasks(cloud, off) == ["create"]
    driver.come_back()
    notice(cloud, off)
    cloud.work()
    is_back(cloud, off)


@pytest.mark.parametrize(
    "columns", [{"drain_wanted": True}, {"forced_down": True}], ids=["drains", "was declared dead"]
)
def test_nobody_is_put_back_on_a_host_that(columns, api, cloud, off):
    service(cloud, off, **columns)
    assert sync(cloud, off) == 1
    assert (stories.states(cloud, off), cloud.row(off).power_state) == (("active", None), PowerState.SHUTDOWN)
    assert sync(cloud, off) == 0
    service(cloud, off, drain_wanted=False, forced_down=False)
    assert sync(cloud, off) == 1
    cloud.work()
    is_back(cloud, off)


def test_nobody_is_put_back_while_the_guests_of_the_host_are_shut_down(api, cloud):
    host = one_host(cloud)
    off, stopped = cloud.boot(api), cloud.boot(api)
    stories.lead(api, cloud, stopped, ("stop",))
    do(cloud, off, "off")
    with target_cell(host.cell):
        assert guest_shutdown.ask(host.name, by="ann@desk")
    do(cloud, stopped, "on")
    assert sync(cloud, stopped) == 1
    assert (stories.states(cloud, stopped), cloud.row(stopped).power_state) == (("stopped", None), PowerState.RUNNING)
    assert not entries(cloud, off, "RestorePowerState") + entries(cloud, stopped, "RestorePowerState")


def test_who_went_down_with_the_host_comes_back_with_it_or_not_as_the_host_says(api, cloud, off):
    other = cloud.boot(api)
    do(cloud, other, "pause")
    for one in (off, other):
        sync(cloud, one, booted=True)
    assert (stories.states(cloud, off), cloud.row(off).resumes_with_host) == (("stopped", None), True)
    assert (stories.states(cloud, other), cloud.row(other).power_state) == (("active", None), PowerState.PAUSED)
    assert not entries(cloud, off, "RestorePowerState") + entries(cloud, other, "RestorePowerState")


def test_a_host_that_drains_before_it_began_calls_it_off_and_does_it_when_it_is_back(api, cloud, off):

    sync(cloud, off)
    host = cloud.host_of(off)
    with target_cell(host.cell):
        step = stories.only_step(cloud)
        assert runner.hand_back(registry.named("RestorePowerState"), step)
    assert stories.states(cloud, off) == ("active", None)
    assert cloud.history(off)[-1].outcome.endswith("drains")
    sync(cloud, off)
    cloud.work()
    is_back(cloud, off)
