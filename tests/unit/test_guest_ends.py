"""Guests that went off, as a worker counts them."""

from __future__ import annotations

import time

import pytest

from compute.virt.shutdown_timer import CUT_SHORT, ShutdownTimer
from tasks.shutdown_recorder import ShutdownCounter
from tests.unit.test_metrics import any_free, metrics, scraped

FORCED, SECONDS = "stillwater_guests_forced_off_total cause={}", "stillwater_guest_shutdown_seconds_count how={}"


@pytest.fixture(scope="module")
def counters():
    """What is counted by now, by name."""
    port = any_free()
    assert metrics.serve(port, "127.0.0.1")
    return lambda *names: [scraped(port).get(name, 0.0) for name in names]


def begun(timeout=60.0):
    return ShutdownTimer.start(time.time() - 5, timeout, 10)


@pytest.mark.parametrize(
    ("timer", "why", "in_histogram"),
    [
        (begun().forcing(), "deadline", 1),
        (begun().forcing(CUT_SHORT), "cut_short", 1),
        (begun().forcing("it was paused"), "paused", 1),
        (begun(0).forcing("it was suspended"), "paused", 0),
        (begun(0).forcing(), "hard", 0),
    ],
)
def test_a_plug_that_was_pulled_is_counted_by_why(counters, timer, why, in_histogram):
    names = FORCED.format(why), SECONDS.format("forced")
    before = counters(*names)
    assert ShutdownCounter().count("s", timer.end(time.time()), 0)
    assert [after - was for after, was in zip(counters(*names), before, strict=True)] == [1, in_histogram]


def test_a_guest_that_obeys_is_in_the_histogram_alone(counters):
    names = [SECONDS.format("guest"), *(FORCED.format(why) for why in ("deadline", "cut_short", "paused", "hard"))]
    before = counters(*names)
    assert ShutdownCounter().count("s", begun().end(time.time()), 1)
    assert [after - was for after, was in zip(counters(*names), before, strict=True)] == [1, 0, 0, 0, 0]


def test_an_end_is_counted_once_however_often_it_is_told():
    ends, timer = ShutdownCounter(), begun().end(time.time())
    assert ends.count("s", timer, 2)
    assert not ends.count("s", timer, 0)
    assert not ends.count("s", timer, 1)
    assert ends.count("other", timer, 0)
    assert ends.count("s", begun().end(time.time()), 0), "the next time it is shut down"


def test_one_that_runs_is_no_end():
    assert not ShutdownCounter().count("s", begun(), 1)


def test_an_end_of_a_past_life_counts_where_somebody_waits_to_hear_of_it():
    long_ago = ShutdownTimer.start(time.time() - 100, 60, 10).end(time.time() - 50)
    assert not ShutdownCounter().count("s", long_ago, 0), "the past life counted it"
    assert ShutdownCounter().count("s", long_ago, 1)


def test_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr("tasks.shutdown_recorder.MOST", 3)
    ends = ShutdownCounter()
    for number in range(10):
        assert ends.count(str(number), begun().end(time.time()), 0)
    assert len(ends._counted) == 3
