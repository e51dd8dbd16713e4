"""What a host's shutdown watcher sees reaches the steps that wait, also when their database was away meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from cells.context import target_cell
from compute.models import Step
from compute.shutdown import grace
from compute.virt.shutdown_timer import ShutdownTimer
from tasks import shutdown_recorder, worker
from tests.flow import stories
from tests.flow.waits import begin


class Away(worker.Worker):
    """A host whose cell's database nobody can reach, until it is back."""

    is_away = True

    @property
    def alias(self) -> str:
        """Where to connect: there is nobody."""
        if self.is_away:
            raise OperationalError("connection refused")
        return super().alias

    def is_back(self) -> None:
        """It answers."""
        self.is_away = False


@pytest.fixture
def away(cells) -> Away:
    """host1, from the beginning of the test."""
    return Away("host", "host1", cells["cell1"].id)


@pytest.fixture
def recorder(away, monkeypatch) -> Iterator[shutdown_recorder.ShutdownRecorder]:
    """As in a host's process."""
    monkeypatch.setattr(shutdown_recorder, "AGAIN", 0.05)
    recorder = shutdown_recorder.ShutdownRecorder(away)
    yield recorder
    recorder.close()
    until(has_ended)


def has_ended() -> bool:
    """No recorder's thread is left."""
    return not [one for one in threading.enumerate() if one.name == "shutdown-recorder"]


def until(what: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_a_clock_that_ends_while_the_database_is_away_is_on_record_when_it_is_back(
    admin, cloud, settings, away, recorder
):  # fmt: skip
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    timer = waiting.timer
    for number in range(5):
        recorder.hear(waiting.server_id, timer.signal(timer.begun + number, "acpi"))
    recorder.hear(waiting.server_id, timer.end(timer.begun + 7))
    time.sleep(0.3)
    assert waiting.step_state() == "waiting"

    away.is_back()

    until(lambda: waiting.step_state() == "queued")
    waiting.goes_off()
    cloud.work()
    assert ShutdownTimer.load(waiting.step.timer).deadline == timer.deadline
    stories.settled(cloud)


def test_of_each_guest_the_newest_word_is_written_and_ends_come_first(admin, cloud, settings, away, recorder):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    timer = waiting.timer
    for number in range(200):
        recorder.hear(f"other-{number}", timer)
    for number in range(3):
        timer = timer.signal(timer.begun + number, "acpi")
        recorder.hear(waiting.server_id, timer)
    for number in range(50):
        recorder.hear(f"ended-{number}", timer.end(timer.begun + 1))
    assert [*recorder._over] == [f"ended-{number}" for number in range(50) if f"ended-{number}" in recorder._over]
    away.is_back()
    until(lambda: not recorder._over)
    assert recorder._going_on  # the ends did not wait for those
    until(lambda: waiting.step.timer["signals"] == 4)
    assert waiting.step.details.startswith("4 signals (acpi); forced off at ")


def test_a_word_that_cannot_be_written_holds_up_no_other(admin, cloud, settings, away, recorder):
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    away.is_back()
    with target_cell(waiting.host.cell):
        row = waiting.step
        Step.objects.create(
            action=row.action, server_id="strange", name="power_off", event="x", host="host1", queue="ops",
            state="waiting", timer={}, queued_at=row.queued_at,
        )  # fmt: skip
    timer = waiting.timer
    recorder.hear("strange", ShutdownTimer(timer.begun, 1e300, 1.0))  # no calendar has that day
    recorder.hear(waiting.server_id, timer.end(timer.begun + 7))
    until(lambda: waiting.step_state() == "queued")
    with target_cell(waiting.host.cell):
        Step.objects.filter(server_id="strange").delete()


def test_a_host_process_finds_what_waits_and_lets_go_in_the_end(admin, cloud, settings):
    """From the beginning of a process to its end, as `tasks/worker_signals.py` has it."""
    waiting = begin("stop", admin, cloud, settings)
    with waiting.host.with_watcher():
        waiting.waiting_step()
    waiting.goes_off()  # nobody sees it
    me = worker.Worker("host", waiting.host.name, waiting.host.cell.id, waiting.host.driver)
    shutdown_recorder.start(me)
    try:
        assert shutdown_recorder.kept() == 0
        with target_cell(waiting.host.cell):
            assert shutdown_recorder.look_after_waiting(me) == 1
        until(lambda: waiting.step_state() == "queued")
        cloud.work()
        stories.lead(admin, cloud, waiting.server_id, ())
        assert stories.states(cloud, waiting.server_id) == ("stopped", None)
        again = begin("stop", admin, cloud, settings)
        again.waiting_step()
        assert shutdown_recorder.kept() == 1  # also a drain without a database waits for it
    finally:
        shutdown_recorder.stop()
        until(has_ended)
    assert shutdown_recorder.kept() == 0
    assert grace._Watch.watcher is None
    assert again.timer.runs
