"""Steps that wait for guests: waiting, woken, done; and their host killed at every moment of it."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.hosts import drain, drain_handback
from compute.models import Service, Step
from compute.operations import action as operations_action
from compute.operations import journal, recovery, registry
from compute.operations.action import StepContext
from compute.operations.step import StepWaiting
from compute.scheduler import host_state
from compute.shutdown import grace
from compute.virt.base import HypervisorUnavailable
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher
from tests.flow import stories, two_hosts
from tests.flow.stories import act
from tests.flow.waits import WAYS, Waiting, begin


def run_of(waiting: Waiting, step: Step) -> StepContext:
    """One try of a step, by hand."""
    with target_cell(waiting.host.cell):
        return registry.named(step.action.key).context(step, waiting.host.driver)


def work(waiting: Waiting, step: Step) -> None:
    """What a step does, without any record of it."""
    run = run_of(waiting, step)
    with target_cell(waiting.host.cell):
        getattr(registry.named(step.action.key), step.name)(run)


# -- the moments at which a host is killed; each leaves no watcher, and the clock as it was


def before_it_begins(waiting: Waiting) -> None:
    waiting.host.begin(waiting.queued().pk)
    assert waiting.host.restart() == 1


def after_the_clock_was_kept(waiting: Waiting) -> None:
    step = waiting.host.begin(waiting.queued().pk)
    with waiting.host.with_watcher(), pytest.raises(StepWaiting):
        work(waiting, step)
    assert waiting.timer.runs
    assert waiting.host.restart() == 1


def while_it_waits(waiting: Waiting) -> None:
    with waiting.host.with_watcher():
        waiting.waiting_step()
    assert waiting.host.restart() == 0


def while_it_waits_and_the_guest_goes_off_unseen(waiting: Waiting) -> None:
    while_it_waits(waiting)
    waiting.goes_off()


def after_it_was_woken(waiting: Waiting) -> None:
    with waiting.host.with_watcher():
        waiting.waiting_step()
        waiting.goes_off()
        waiting.is_awake()
    assert waiting.host.restart() == 0


def after_it_was_claimed_again(waiting: Waiting) -> None:
    after_it_was_woken(waiting)
    assert waiting.host.begin(waiting.step.pk)
    assert waiting.host.restart() == 1


def after_its_work(waiting: Waiting) -> None:
    after_it_was_woken(waiting)
    work(waiting, waiting.host.begin(waiting.step.pk))
    assert waiting.host.restart() == 1


MOMENTS = [
    before_it_begins, after_the_clock_was_kept, while_it_waits, while_it_waits_and_the_guest_goes_off_unseen,
    after_it_was_woken, after_it_was_claimed_again, after_its_work,
]  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_it_is_parked_woken_and_done(name, admin, cloud, settings):
    waiting = begin(name, admin, cloud, settings)
    with waiting.host.with_watcher():
        step = waiting.waiting_step()
        timer = waiting.timer
        assert (step.queue, step.incarnation, step.attempts) == ("ops", "", 1)
        assert step.deadline.timestamp() == pytest.approx(timer.deadline, abs=0.001)
        assert step.details.startswith("1 signal (acpi); forced off at ")
        begun = step.started_at
        waiting.goes_off()
        cloud.work_until(waiting.is_over)
    waiting.ended_with(timer)
    assert (waiting.step.started_at, waiting.step.attempts) == (begun, 1)  # its wait was part of it


@pytest.mark.parametrize("moment", MOMENTS, ids=[moment.__name__ for moment in MOMENTS])
@pytest.mark.parametrize("name", WAYS)
def test_its_host_is_killed(name, moment, admin, cloud, settings):
    waiting = begin(name, admin, cloud, settings)
    moment(waiting)
    with waiting.host.with_watcher():
        if moment in MOMENTS[:3]:
            waiting.waiting_step()
            timer = waiting.timer
            waiting.goes_off()
        else:
            timer = ShutdownTimer.load(waiting.step.timer)
        cloud.work_until(waiting.is_over)
    if moment is after_its_work and name == "soft reboot":
        assert waiting.step.details == "was done before the restart"  # it is not rebooted twice
        assert [effect.effect.value for effect in waiting.host.driver.effects(waiting.server_id)].count("rebooted") == 1
        return
    waiting.ended_with(timer)


# -- the deadline


def test_a_host_that_was_dead_at_the_deadline_forces_the_guest_off_in_its_next_life(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    settings.SHUTDOWN_TIMEOUT = 1
    while_it_waits(waiting)
    timer = waiting.timer
    time.sleep(max(0.0, timer.deadline - time.time()) + 0.1)
    with waiting.host.with_watcher():
        cloud.work_until(waiting.is_over)
    ended = ShutdownTimer.load(waiting.step.timer)
    assert (ended.how, ended.begun, ended.deadline) == ("forced", timer.begun, timer.deadline)
    assert waiting.step.details.startswith("forced off after 1 s, 1 signal")
    stories.settled(cloud)


def test_a_soft_reboot_falls_back_to_a_hard_one_and_says_so(admin, cloud, settings):
    waiting = begin("soft reboot", admin, cloud, settings)
    settings.SHUTDOWN_TIMEOUT = 1
    with waiting.host.with_watcher():
        cloud.work_until(waiting.is_over)
    assert waiting.step.details.startswith("fell back to a hard reboot after 1 s")
    assert stories.states(cloud, waiting.server_id) == ("active", None)
    stories.settled(cloud)


def test_a_watcher_that_reports_nothing_is_replaced_by_the_relay(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    watcher = ShutdownWatcher(waiting.host.driver, lambda uuid, timer: None)  # never started: nobody turns the clock
    grace.set_watcher(watcher)
    try:
        step = waiting.waiting_step()
        with target_cell(waiting.host.cell):
            assert step.not_before == step.deadline + journal.MARGIN
            recovery.relay()
            assert waiting.step_state() == "waiting"  # it is not time
            Step.objects.filter(pk=step.pk).update(not_before=timezone.now() - timedelta(seconds=1))
            recovery.relay()
        assert waiting.step_state() == "queued"
        waiting.goes_off()
        cloud.work()
    finally:
        grace.set_watcher(None)
    assert waiting.step.details.startswith("guest shut down in")
    assert stories.states(cloud, waiting.server_id) == ("stopped", None)


# -- tries


def test_one_that_waits_again_and_again_uses_up_no_tries(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        for _ in range(2 * operations_action.MAX_TRIES):
            step = waiting.waiting_step()
            assert step.attempts == 1
            with target_cell(waiting.host.cell):
                assert journal.resume_step(step)
                assert not journal.resume_step(step)
        timer = waiting.timer
        waiting.waiting_step()
        waiting.goes_off()
        cloud.work_until(waiting.is_over)
    waiting.ended_with(timer)


def test_one_that_fails_after_its_wait_runs_out_of_tries(admin, cloud, settings):
    waiting = begin("soft reboot", admin, cloud, settings)
    waiting.host.driver.faults.fail("reboot_hard", times=-1, error=HypervisorUnavailable)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        waiting.goes_off()
        waiting.is_awake()
        for tries in range(1, operations_action.MAX_TRIES + 1):
            assert not waiting.is_over()
            stories.later(cloud)
            cloud.work()
            assert waiting.step.attempts == tries
    assert waiting.step.state == "failed"
    assert waiting.newest().message == "Error"


# -- others


def test_a_second_clock_word_wakes_nobody_twice_and_a_late_one_changes_nothing(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    ended = waiting.timer.end(time.time())
    with target_cell(waiting.host.cell):
        assert journal.record_timer("elsewhere", waiting.server_id, ended) == 0
        assert journal.record_timer(waiting.host.name, waiting.server_id, ended) == 1
        assert journal.record_timer(waiting.host.name, waiting.server_id, ended) == 0
        assert journal.record_timer(waiting.host.name, waiting.server_id, waiting.timer) == 0
    assert (waiting.step.state, ShutdownTimer.load(waiting.step.timer)) == ("queued", ended)


@pytest.mark.parametrize("hard", [True, False])
def test_a_delete_joins_the_wait_of_a_stop_or_ends_it(hard, admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    words = "HARD" if hard else "SOFT"
    with waiting.host.with_watcher():
        waiting.waiting_step()
        timer = waiting.timer
        assert admin.delete(f"/servers/{waiting.server_id}?shutdown_type={words}").status_code == 204
        cloud.work()
        if not hard:
            assert [step.timer["deadline"] for step in waiting.host.waiting()] == [timer.deadline] * 2
            waiting.goes_off()
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(waiting.server_id)))
    stop, delete = cloud.history(waiting.server_id)[-2:]
    how = "forced off after 0 s: cut short by a request" if hard else "guest shut down in"
    assert stop.outcome.startswith(f"preempted: {how}")
    assert [ShutdownTimer.load(action.steps.latest("pk").timer).begun for action in (stop, delete)] == [timer.begun] * 2
    assert cloud.row(waiting.server_id).deleted
    stories.settled(cloud)


def test_one_that_joins_and_fails_leaves_the_others_their_clock(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher() as watcher:
        waiting.waiting_step()
        timer = waiting.timer
        waits_until = time.monotonic() + 30
        while watcher._since or min(watcher._due.values()) < time.monotonic():  # it would take the failure
            assert time.monotonic() < waits_until
        waiting.host.driver.faults.fail("timer", uuid=waiting.server_id)
        assert admin.delete(f"/servers/{waiting.server_id}?shutdown_type=SOFT").status_code == 204
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(waiting.server_id)))
    stop, delete = cloud.history(waiting.server_id)[-2:]
    assert delete.steps.get().details == "could not be shut down: timer failed as injected"  # and was destroyed
    assert stop.outcome.startswith("preempted: guest was gone after")  # and not: given up
    assert ShutdownTimer.load(waiting.step.timer).begun == timer.begun
    stories.settled(cloud)


def test_a_hard_reboot_ends_the_wait_of_a_soft_one(admin, cloud, settings):
    waiting = begin("soft reboot", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        assert act(admin, waiting.server_id, {"reboot": {"type": "HARD"}}).status_code == 202
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(waiting.server_id)))
    soft, hard = cloud.history(waiting.server_id)[-2:]
    assert soft.outcome.startswith("preempted: forced off after 0 s: cut short by a request")
    assert hard.message is None
    assert stories.states(cloud, waiting.server_id) == ("active", None)
    stories.settled(cloud)


def test_a_reset_state_leaves_the_clock_and_what_it_ends_in_is_on_record(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        assert act(admin, waiting.server_id, {"os-resetState": {"state": "active"}}).status_code == 202
        waiting.goes_off()
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(waiting.server_id)))
    outcomes = {action.action: action.outcome for action in cloud.history(waiting.server_id)}
    assert outcomes["stop"].startswith("preempted: guest shut down in")
    assert stories.states(cloud, waiting.server_id) == ("active", None)  # until the power sync looks


def test_a_host_that_drains_waits_for_it_and_gives_nothing_back(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        with target_cell(waiting.host.cell):
            assert drain_handback.hand_back(waiting.host.name) == 0
            assert drain.needs(waiting.host.name) == 1
            service = Service.objects.get(host=waiting.host.name)
            assert drain.count(service) == 1
            [operation] = drain.operations(service)
            [held] = drain.waiting_operations(waiting.host.name)
            assert operation == held
            assert operation.state == "waiting"
            assert operation.waits_for.startswith("1 signal (acpi); forced off at")
            assert 0 < operation.seconds_left <= settings.SHUTDOWN_TIMEOUT
            assert operation.blocker == ""
            waiting.goes_off()
            waiting.is_awake()
            assert drain.needs(waiting.host.name) == 1  # it is woken, and not done
        cloud.work()
    with target_cell(waiting.host.cell):
        assert drain.needs(waiting.host.name) == 0


def test_what_waits_counts_as_an_operation_of_its_host(admin, cloud, settings):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
        with target_cell(waiting.host.cell):
            assert {one.host: one.operations for one in host_state.read()}[waiting.host.name] == 1


def test_the_watcher_of_another_host_does_not_wake_it(admin, cloud, settings):
    waiting = begin("migrate", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    with target_cell(waiting.host.cell):
        journal.record_timer("host3", waiting.server_id, waiting.timer.end(time.time()))
        assert waiting.step_state() == "waiting"
    assert two_hosts.homes(cloud, waiting.server_id) == ["host1"]
    assert not cloud.queued()
