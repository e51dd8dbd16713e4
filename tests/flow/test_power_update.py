"""Somebody who has charge of a machine says that it was switched on or off."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from cells.context import target_cell
from compute.actions import power_update
from compute.actions.bases.event import ReceivedEvent
from compute.actions.power_update import OFF, ON
from compute.actions.shutdown_with_host import ShutdownWithHost
from compute.hosts import drain as hosts_drain
from compute.hosts import guest_shutdown
from compute.models import InstanceAction, Service, Step
from compute.operations import journal, recovery
from compute.power import sync
from compute.virt.base import PowerState
from tests.byhand import Cloud
from tests.flow import stories, two_hosts
from tests.flow.stories import act, states


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    """Its machines can be switched, and their hosts are told."""
    for host in cloud.hosts.values():
        host.driver.faults.accept()
    return cloud


def say(cloud: Cloud, server_id: str, said: str, request_id: str = "") -> InstanceAction:
    """As the API records it."""
    row, request_id = cloud.row(server_id), request_id or f"req-{uuid4()}"
    params = power_update.PowerUpdateParams(event=ReceivedEvent(
        name="power-update", tag=said, status="completed", request_id=request_id, received_at=timezone.now(),
    ))  # fmt: skip
    with target_cell(row._state.db) as alias, transaction.atomic(using=alias):
        action = journal.open_action(
            row, name=power_update.NAMES[said], key="PowerUpdate", request_id=request_id,
            user_id="ironic", project_id=row.project_id, params=params,
        )  # fmt: skip
        journal.open_step(action, name="power_update", event="compute_power_update", host=row.host, queue="ops")
    return action


def switch(cloud: Cloud, server_id: str, said: str) -> InstanceAction:
    """The button is pressed, and that is said."""
    cloud.host_of(server_id).driver.switch(server_id, on=said == ON)
    return say(cloud, server_id, said)


def outcome(action: InstanceAction) -> tuple[str | None, str]:
    """How it ended."""
    with target_cell(action._state.db):
        action.refresh_from_db()
    assert action.finished_at is not None
    return action.message, action.outcome


def stands(cloud: Cloud, server_id: str, vm_state: str) -> None:
    """At rest, and true."""
    assert states(cloud, server_id) == (vm_state, None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def calls(cloud: Cloud, server_id: str) -> list[str]:
    """What its machine was asked to do, or about."""
    return [verb for verb, uuid in cloud.host_of(server_id).driver.calls if uuid == server_id]


def test_a_machine_switched_off_and_on_is_followed_and_shown_with_its_request_id(api, cloud):
    server_id = cloud.boot(api)
    off = switch(cloud, server_id, OFF)
    cloud.work()
    stands(cloud, server_id, "stopped")
    assert outcome(off) == (None, "POWER_OFF was said, and the machine is shutdown")
    on = switch(cloud, server_id, ON)
    cloud.work()
    stands(cloud, server_id, "active")
    shown = stories.last_action(api, server_id)
    assert (shown["action"], shown["request_id"], shown["message"]) == ("start", on.request_id, None)
    assert [(e["event"], e["result"]) for e in shown["events"]] == [("compute_power_update", "Success")]
    assert {"power_on", "power_off", "save_timer"}.isdisjoint(calls(cloud, server_id)[1:])  # nobody touched it


def test_a_machine_switched_on_by_hand_stays_on_over_three_rounds_of_the_sync(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    switch(cloud, server_id, ON)
    cloud.work()
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        assert [sync.sync(host.name, host.driver) for _ in range(3)] == [0, 0, 0]
    stands(cloud, server_id, "active")


@pytest.mark.parametrize(
    ("lead", "said", "words"),
    [
        ((), ON, "the server is active already"),
        (("stop",), OFF, "the server is stopped already"),
        (("suspend",), ON, "the server is suspended, and stays so"),
        (("suspend",), OFF, "the server is suspended, and stays so"),
        (("pause",), ON, "the server is paused, and stays so"),
    ],
)
def test_what_is_so_already_or_cannot_change_is_success_and_says_why(lead, said, words, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, lead)
    was = cloud.row(server_id)
    action = say(cloud, server_id, said)
    cloud.work()
    assert outcome(action) == (None, words)
    row = cloud.row(server_id)
    assert (row.generation, row.updated_at) == (was.generation, was.updated_at)
    assert stories.last_action(api, server_id)["events"][0]["result"] == "Success"


def test_a_paused_machine_that_is_switched_off_is_stopped(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("pause",))
    switch(cloud, server_id, OFF)
    cloud.work()
    stands(cloud, server_id, "stopped")


def test_the_server_is_powering_off_while_the_driver_is_asked(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    driver, seen = cloud.host_of(server_id).driver, []
    ask = driver.power_update_event

    def asked(uuid: str, said: PowerState) -> PowerState:
        seen.append((*states(cloud, uuid), said))
        return ask(uuid, said)

    monkeypatch.setattr(driver, "power_update_event", asked)
    switch(cloud, server_id, OFF)
    cloud.work()
    assert seen == [("active", "powering-off", PowerState.SHUTDOWN)]


def test_a_word_that_comes_late_is_recorded_as_the_machine_is(api, cloud):
    server_id = cloud.boot(api)
    action = say(cloud, server_id, OFF)  # it is on again already
    cloud.work()
    assert outcome(action) == (None, "POWER_OFF was said, and the machine is running")
    stands(cloud, server_id, "active")


@pytest.mark.parametrize(("lead", "does", "end"), [((), OFF, "stopped"), (("stop",), ON, "active")])
def test_of_two_words_in_the_wrong_order_the_machine_is_believed(lead, does, end, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, lead)
    first = switch(cloud, server_id, does)
    second = say(cloud, server_id, power_update.OTHER[does])  # what it did before that
    cloud.work()
    assert outcome(first)[1] == f"superseded by {power_update.OTHER[does]} of {second.request_id}"
    stands(cloud, server_id, end)


def test_the_power_state_alone_of_a_server_that_stays_as_it_is_follows(api, admin, cloud):
    server_id = cloud.boot(api)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    action = switch(cloud, server_id, OFF)
    cloud.work()
    assert outcome(action) == (None, "the server is error, and stays so")
    assert (states(cloud, server_id), cloud.row(server_id).power_state) == (("error", None), PowerState.SHUTDOWN)


@pytest.mark.parametrize(("said", "stays_marked"), [(OFF, True), (ON, False)])
def test_a_server_that_went_off_with_its_host_is_to_be_back_unless_it_is_on(said, stays_marked, api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.switch(server_id, on=False)
    with target_cell(host.cell):
        sync.sync(host.name, host.driver, booted=True)
    assert cloud.row(server_id).resumes_with_host
    switch(cloud, server_id, said)
    cloud.work()
    assert cloud.row(server_id).resumes_with_host is stays_marked


def test_a_host_without_it_logs_an_error_and_leaves_the_server_as_it_was(api, admin, cloud, caplog):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.clear()
    was = cloud.row(server_id)
    action = say(cloud, server_id, OFF)
    cloud.work()
    words = "a FakeDriver host accepts no power updates"
    assert outcome(action) == ("Error", words)
    assert action.fault["message"] == words
    row = cloud.row(server_id)
    assert (row.vm_state, row.task_state, row.power_state, row.fault) == ("active", None, was.power_state, None)
    event = stories.last_action(admin, server_id)["events"][0]
    assert (event["result"], event["details"], "NotSupported" in event["traceback"]) == ("Error", words, True)
    assert "power_update.not_supported" in caplog.text
    stories.settled(cloud)


# -- while something goes on with the server


def waiting(cloud: Cloud, server_id: str) -> list[Step]:
    """Events that wait."""
    with target_cell(cloud.cell_of(server_id)):
        return list(Step.objects.filter(server_id=server_id, state="waiting", details=journal.FOR_THE_TASK))


def hear(cloud: Cloud, server_id: str) -> None:
    """Its host runs the events, and nothing else."""
    for _, step in cloud.queued():
        if step.name == "power_update" and step.server_id == server_id:
            cloud.hosts[step.host].run(step.pk)


@pytest.mark.parametrize("name", ["stop", "soft reboot", "create image", "pause", "suspend"])
def test_an_event_during_a_task_is_kept_and_applied_when_the_task_ends(name, api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, stories.STORIES[name].body)
    task = cloud.row(server_id).task_state
    action = say(cloud, server_id, OFF)
    hear(cloud, server_id)
    assert len(waiting(cloud, server_id)) == 1
    assert cloud.row(server_id).task_state == task
    ends = stories.STORIES[name].end
    cloud.work()
    assert waiting(cloud, server_id) == []
    assert outcome(action)[0] is None
    stands(cloud, server_id, {"pause": "paused"}.get(name, ends))


def test_the_newest_of_several_wins_and_the_others_say_so(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, stories.STORIES["create image"].body)
    driver, said = cloud.host_of(server_id).driver, []
    for word in (OFF, ON, OFF, ON, OFF):
        driver.switch(server_id, on=word == ON)
        said.append(say(cloud, server_id, word))
        hear(cloud, server_id)
        assert len(waiting(cloud, server_id)) == 1
    hear(cloud, server_id)
    newest = said.pop()
    for older in said:
        message, words = outcome(older)
        assert (message, words.partition(" by ")[0]) == (None, "superseded")
    cloud.work()
    assert outcome(newest) == (None, "POWER_OFF was said, and the machine is shutdown")
    stands(cloud, server_id, "stopped")


def test_an_older_one_that_is_heard_last_changes_nothing(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.switch(server_id, on=False)
    older, newer = say(cloud, server_id, ON), say(cloud, server_id, OFF)
    for _, step in reversed(cloud.queued()):
        cloud.host_of(server_id).run(step.pk)
    assert outcome(newer)[1].startswith("POWER_OFF was said")
    assert outcome(older)[1].startswith("superseded")
    stands(cloud, server_id, "stopped")


def test_a_guest_in_its_grace_period_hears_of_it_when_it_is_off(api, cloud, settings):
    settings.SHUTDOWN_TIMEOUT = 600
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    act(api, server_id, {"os-stop": None})
    with host.with_watcher():
        cloud.work()
        host.driver.switch(server_id, on=False)
        action = say(cloud, server_id, OFF)
        cloud.work_until(lambda: cloud.row(server_id).task_state is None)
    assert outcome(action) == (None, "the server is stopped already")
    stands(cloud, server_id, "stopped")


def test_the_net_catches_one_that_nobody_woke(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    switch(cloud, server_id, OFF)
    hear(cloud, server_id)
    with target_cell(cloud.cell_of(server_id)):
        recovery.relay()
        assert len(waiting(cloud, server_id)) == 1  # not yet
        Step.objects.filter(state="waiting").update(not_before=stories.just_over())
        recovery.relay()
    assert waiting(cloud, server_id) == []
    hear(cloud, server_id)
    [step] = waiting(cloud, server_id)  # the task goes on
    assert step.attempts == 1


# -- who takes the server while the driver is asked


def during(cloud: Cloud, server_id: str, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """`do()` once, while the driver is asked."""
    driver = cloud.host_of(server_id).driver
    ask, todo = driver.power_update_event, [do]

    def asked(uuid: str, said: PowerState) -> PowerState:
        answer = ask(uuid, said)
        if todo:
            todo.pop()()
        return answer

    monkeypatch.setattr(driver, "power_update_event", asked)


def test_a_delete_meanwhile_wins(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    during(cloud, server_id, monkeypatch, lambda: api.delete(f"/servers/{server_id}"))
    action = switch(cloud, server_id, OFF)
    cloud.work()
    assert cloud.row(server_id).deleted
    assert outcome(action) == (None, "the server was deleted")
    assert cloud.history(server_id)[-1].message is None
    stories.settled(cloud)


def test_a_hard_stop_meanwhile_is_carried_out_and_ends_well(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    hard = {"os-stop": {"shutdown_type": "HARD"}}
    during(cloud, server_id, monkeypatch, lambda: act(api, server_id, hard))
    action = say(cloud, server_id, OFF)
    cloud.work()
    assert outcome(action) == (None, "the server is stopped already")
    assert [(one.action, one.message) for one in cloud.history(server_id)][1:] == [("stop", None), ("stop", None)]
    stands(cloud, server_id, "stopped")


@pytest.mark.parametrize(("reset", "end"), [("active", "stopped"), ("error", "error")])
def test_an_operator_who_resets_the_state_meanwhile_is_heard_first(reset, end, api, admin, cloud, monkeypatch):
    server_id = cloud.boot(api)
    body = {"os-resetState": {"state": reset}}
    during(cloud, server_id, monkeypatch, lambda: act(admin, server_id, body))
    action = switch(cloud, server_id, OFF)
    cloud.work()
    assert outcome(action)[0] is None
    assert (states(cloud, server_id), cloud.row(server_id).power_state) == ((end, None), PowerState.SHUTDOWN)
    stories.settled(cloud)


def test_a_sync_that_looked_before_the_event_does_not_undo_it(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    look = host.driver.guests

    def looks_while_it_is_switched():
        seen = look()
        switch(cloud, server_id, OFF)
        cloud.work()
        switch(cloud, server_id, ON)
        cloud.work()
        host.driver.switch(server_id, on=False)
        say(cloud, server_id, OFF)
        cloud.work()
        return seen

    host.driver.guests = looks_while_it_is_switched
    with target_cell(host.cell):
        sync.sync(host.name, host.driver)
    host.driver.guests = look
    stands(cloud, server_id, "stopped")


def test_what_was_seen_before_somebody_was_quicker_is_not_recorded(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("pause",))
    host = cloud.host_of(server_id)
    look = host.driver.power_state

    def looks_while_it_is_unpaused_by_hand(uuid: str) -> PowerState:
        monkeypatch.undo()
        seen = look(uuid)
        host.driver.unpause(uuid)
        with target_cell(host.cell):
            sync.sync(host.name, host.driver)
        return seen

    monkeypatch.setattr(host.driver, "power_state", looks_while_it_is_unpaused_by_hand)
    action = say(cloud, server_id, ON)
    cloud.work()
    assert outcome(action) == (None, "the server is active already")
    stands(cloud, server_id, "active")


# -- its host drains, is away, or goes down


def drain(cloud: Cloud, server_id: str) -> None:
    """From now on its host begins nothing."""
    row = cloud.row(server_id)
    with target_cell(row._state.db):
        Service.objects.filter(binary="nova-compute", host=row.host).update(drain_wanted=True)


def needs(cloud: Cloud, server_id: str) -> int:
    """What holds its host."""
    row = cloud.row(server_id)
    with target_cell(row._state.db):
        return hosts_drain.needs(row.host)


def test_a_host_that_drains_still_hears_it(api, cloud):
    server_id = cloud.boot(api)
    drain(cloud, server_id)
    switch(cloud, server_id, OFF)
    assert needs(cloud, server_id) == 1
    hear(cloud, server_id)
    stands(cloud, server_id, "stopped")
    assert needs(cloud, server_id) == 0


def test_a_host_that_drains_does_not_stay_for_an_event_that_waits_for_a_request_it_will_not_begin(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    drain(cloud, server_id)
    action = say(cloud, server_id, OFF)
    hear(cloud, server_id)
    assert needs(cloud, server_id) == 0
    with target_cell(cloud.cell_of(server_id)):
        Service.objects.update(drain_wanted=False)
    cloud.work()
    assert outcome(action)[0] is None
    stands(cloud, server_id, "paused")


def test_a_host_that_drains_stays_for_an_event_that_waits_for_what_it_has_begun(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    host = cloud.host_of(server_id)
    step = host.begin(stories.only_step(cloud).pk)
    drain(cloud, server_id)
    say(cloud, server_id, OFF)
    host.finish(step)
    assert needs(cloud, server_id) == 1
    hear(cloud, server_id)
    assert needs(cloud, server_id) == 0
    stands(cloud, server_id, "paused")


def test_guests_that_go_down_with_their_host_do_not_wait_for_an_event_that_waits_for_them(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    drain(cloud, server_id)
    say(cloud, server_id, OFF)
    hear(cloud, server_id)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        guest_shutdown.ask(host.name, by="test")
        [step] = Step.objects.filter(action__key=ShutdownWithHost.__name__)
    host.run(step.pk)
    assert host.driver.power_state(server_id) is PowerState.SHUTDOWN
    cloud.work()
    stories.settled(cloud)


def test_a_server_that_moves_while_an_event_waits_has_it_at_its_new_home(admin, cloud):
    cloud.add_host("host1b", "cell1").driver.faults.accept()
    server_id = two_hosts.booted(admin, cloud, "host1")
    act(admin, server_id, two_hosts.LIVE)
    action = say(cloud, server_id, ON)
    hear(cloud, server_id)
    assert len(waiting(cloud, server_id)) == 1
    cloud.work()
    assert cloud.row(server_id).host == "host1b"
    assert outcome(action) == (None, "the server is active already")
    stands(cloud, server_id, "active")


def test_a_server_that_is_shelved_while_an_event_waits_has_no_machine_any_more(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"shelve": None})
    action = say(cloud, server_id, OFF)
    hear(cloud, server_id)
    cloud.work()
    assert states(cloud, server_id) == ("shelved_offloaded", None)
    assert outcome(action) == (None, "the server is on no host any more")
    stories.settled(cloud)
