"""The journal: messages that come twice, late or never, and workers that lost their step."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from cells.context import target_cell
from compute.hosts import drain_handback
from compute.models import Step
from compute.operations import dispatch, journal, recovery
from compute.virt.base import VirtError
from tasks import run_step, worker
from tasks.tracker import Kind, Work, tracker
from tests.flow import stories
from tests.flow.stories import EVERY, STORIES, at_once, begin, ends_well, only_step

# -- twice, late, never


@pytest.mark.parametrize("name", EVERY)
def test_a_message_delivered_twice_runs_once(name, api, cloud):
    server_id = begin(name, api, cloud)
    step, host = only_step(cloud), cloud.host_of(server_id)
    assert [host.run(step.pk) for _ in range(3)] == [True, False, False]
    ends_well(name, cloud, server_id)


def test_a_message_delivered_to_eight_threads_at_once_runs_once(api, cloud):
    server_id = begin("hard reboot", api, cloud)
    step, host = only_step(cloud), cloud.host_of(server_id)
    assert sorted(at_once(8, lambda _: host.run(step.pk))) == [False] * 7 + [True]
    assert [verb for verb, _ in host.driver.calls].count("reboot_hard") == 1
    assert cloud.history(server_id)[-1].steps.get().attempts == 1
    ends_well("hard reboot", cloud, server_id)


def test_a_message_in_the_wrong_queue_does_no_harm(api, cloud):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        assert journal.claim(only_step(cloud).pk, "nova-conductor@x", "x", host="") is None
    cloud.work()
    ends_well("pause", cloud, server_id)


def test_a_lost_message_is_sent_again_and_ever_less_often(api, cloud, settings):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        assert recovery.relay() == 0  # it was just sent
        for sends, wait in [(1, 15), (2, 30), (3, 60), (9, 600), (30, 600)]:
            _sent(wait - 1, sends)
            assert recovery.relay() == 0, (sends, wait)
            _sent(wait + 1, sends)
            assert recovery.relay() == 1, (sends, wait)
            assert Step.objects.get(state="queued").sends == sends + 1
    cloud.work()
    with target_cell(cloud.cell_of(server_id)):
        assert recovery.relay() == 0


def test_a_step_that_waits_for_its_next_try_is_not_sent_before(api, cloud):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        Step.objects.filter(state="queued").update(sent_at=None, not_before=timezone.now() + timedelta(minutes=1))
        assert recovery.relay() == 0
        assert not cloud.host_of(server_id).run(only_step(cloud).pk)
        Step.objects.filter(state="queued").update(not_before=stories.just_over())
        assert recovery.relay() == 1


def test_the_queue_of_a_dead_host_does_not_hold_up_the_others(api, cloud, monkeypatch):
    monkeypatch.setattr(recovery, "BATCH", 3)
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        lost = only_step(cloud)
        old = timezone.now() - timedelta(hours=1)
        for _ in range(5):  # sent often, and not due again for a long time
            Step.objects.create(
                action=lost.action, server_id="x", name="pause", event="e", host="dead", queue="requests",
                queued_at=old, sent_at=timezone.now() - timedelta(minutes=5), sends=12,
            )  # fmt: skip
        Step.objects.filter(pk=lost.pk).update(sent_at=timezone.now() - timedelta(seconds=16))
        assert recovery.relay() == 1


def test_a_host_that_starts_is_sent_everything_that_waits_for_it(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        assert drain_handback.send_again(host.name) == 1
        assert drain_handback.send_again("elsewhere") == 0


def test_a_long_operation_without_a_slot_stays_queued_says_why_and_is_the_next_to_be_sent(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"rescue": None})
    host = cloud.host_of(server_id)
    assert host.run(only_step(cloud).pk)  # off; the next step makes a disk
    rescue = only_step(cloud)
    with target_cell(host.cell):
        me = (rescue.pk, host.worker, host.incarnation, host.name)
        assert journal.claim(*me, why_not=lambda step: f"no room for {step.name}") is None
        rescue.refresh_from_db()
        assert (rescue.state, rescue.attempts, rescue.details) == ("queued", 0, "no room for rescue")
        assert drain_handback.send_next_long(host.name, 1) == 1
        assert drain_handback.send_next(host.name, 1) == 0
        later = timezone.now() + timedelta(seconds=50)
        Step.objects.filter(pk=rescue.pk).update(not_before=later, details="again in 50 s")
        assert journal.claim(*me, why_not=lambda step: "no room") is None
        rescue.refresh_from_db()
        assert rescue.details == "again in 50 s", "why it is not due is not lost"
        assert drain_handback.send_next_long(host.name, 1) == 0
        Step.objects.filter(pk=rescue.pk).update(not_before=None)
    cloud.work()
    assert stories.states(cloud, server_id) == ("rescued", None)


# -- one at a time


def test_steps_of_one_server_run_one_at_a_time_and_the_waiting_one_is_woken(api, cloud, monkeypatch):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    pause = host.begin(only_step(cloud).pk)
    api.delete(f"/servers/{server_id}")
    delete = only_step(cloud)
    assert not host.run(delete.pk)

    woken = []
    broker = lambda url, sent: [not woken.append(one) for one in sent]  # noqa: E731
    monkeypatch.setattr(dispatch, "publish_all", broker)
    host.finish(pause)

    assert woken == [(f"compute.{host.name}", dispatch.RUN_STEP, {"step_id": delete.pk})]
    cloud.work()
    ends_well("delete", cloud, server_id)


def test_a_preempted_action_leaves_no_trace_on_the_record(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    pause = host.begin(only_step(cloud).pk)
    stories.act(api, server_id, STORIES["hard reboot"].body)
    before = _columns(cloud, server_id)
    host.finish(pause)
    assert _columns(cloud, server_id) == before
    paused = cloud.history(server_id)[1]
    assert paused.message == "Error"
    assert paused.outcome.startswith("preempted")
    cloud.work()
    ends_well("hard reboot", cloud, server_id)


def test_a_preempted_action_that_fails_leaves_no_fault(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    pause = host.begin(only_step(cloud).pk)
    stories.act(api, server_id, STORIES["hard reboot"].body)
    host.driver.faults.fail("pause")
    host.finish(pause)
    assert stories.states(cloud, server_id) == ("active", "rebooting_hard")
    assert cloud.row(server_id).fault is None


# -- whoever lost a step, and a database that is away


def test_a_worker_that_lost_its_step_writes_nothing(api, cloud):
    server_id = begin("stop", api, cloud)
    host = cloud.host_of(server_id)
    slow = host.begin(only_step(cloud).pk)
    host.restart()
    again = host.begin(only_step(cloud).pk)
    before = _columns(cloud, server_id)

    host.finish(slow)

    assert _columns(cloud, server_id) == before
    assert Step.objects.using(slow._state.db).get(pk=slow.pk).state == "running"
    host.finish(again)
    ends_well("stop", cloud, server_id)


def test_a_worker_that_lost_its_step_fails_in_silence(api, cloud):
    server_id = begin("stop", api, cloud)
    host = cloud.host_of(server_id)
    slow = host.begin(only_step(cloud).pk)
    save_timer = host.driver.save_timer

    def fails_too_late(uuid: str, timer: object) -> None:
        host.driver.save_timer = save_timer
        host.restart()
        raise VirtError("the guest does not hear")

    host.driver.save_timer = fails_too_late
    host.finish(slow)
    assert stories.states(cloud, server_id) == ("active", "powering-off")
    cloud.work()
    ends_well("stop", cloud, server_id)


def test_a_database_that_goes_away_during_a_step_leaves_it_to_recovery(api, cloud):
    server_id = begin("stop", api, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("save_timer", error=OperationalError)
    with pytest.raises(OperationalError):
        cloud.work()
    assert stories.states(cloud, server_id) == ("active", "powering-off")
    with target_cell(host.cell):
        running = Step.objects.get(state="running").pk
        assert recovery.recover(host.worker, host.incarnation, lambda: {running}) == 0  # it is at work on it
        assert recovery.recover(host.worker, host.incarnation, list) == 1
    cloud.work()
    ends_well("stop", cloud, server_id)


def test_a_real_worker_counts_its_step_and_runs_it_once(api, cloud, settings):
    server_id = begin("pause", api, cloud)
    host, step = cloud.host_of(server_id), only_step(cloud)
    worker._current = worker.Worker("host", host.name, host.cell.id, host.driver)
    seen = []
    host.driver.watch(lambda event: None)
    original = host.driver.pause
    host.driver.pause = lambda uuid: (seen.extend(tracker.running()), original(uuid))
    try:
        for _ in range(2):
            work = tracker.begin(Work(Kind.REQUEST, "stillwater.run_step", step_id=step.pk))
            run_step.run(step.pk)
            tracker.end(work.key)
    finally:
        worker._current = None
    assert [(work.server_id, work.action, work.name) for work in seen] == [(server_id, "pause", "pause")]
    assert not tracker.running()
    ends_well("pause", cloud, server_id)


def _sent(seconds_ago, sends):
    when = timezone.now() - timedelta(seconds=seconds_ago)
    Step.objects.filter(state="queued").update(sent_at=when, sends=sends)


def _columns(cloud, server_id):
    row = cloud.row(server_id)
    return row.vm_state, row.task_state, row.power_state, row.generation, row.fault
