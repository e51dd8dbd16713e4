"""The clock of a guest's grace: plain data, whatever the numbers are."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.virt import shutdown_timer as timers
from compute.virt.shutdown_timer import FAR, ShutdownTimer

moments = st.floats(0, 4e9)
timeouts = st.floats(0, 86_400)
intervals = st.floats(0.05, 3600)
texts = st.text(max_size=20)
clock_of = st.builds(
    ShutdownTimer, moments, moments, intervals, st.integers(0, 10_000), moments, texts, moments, texts, texts, texts,
    st.floats(-4e9, 4e9),
)  # fmt: skip


@given(moments, timeouts, intervals, st.floats(0, 86_400))
def test_the_next_signal_is_at_a_whole_number_of_intervals_after_the_last_one(now, timeout, interval, late):
    timer = ShutdownTimer.start(now, timeout, interval)
    assert timer.next_signal == now
    signalled = timer.signal(now + late, "acpi")
    if not signalled.signalled:
        return  # the year 1970 began with it
    steps = (signalled.next_signal - now) / interval
    assert steps == pytest.approx(round(steps), abs=1e-3)
    assert 0 < signalled.next_signal - signalled.signalled + 2e-3 <= interval + 4e-3
    assert signalled.due == min(signalled.next_signal, timer.deadline)


@given(moments, timeouts, intervals)
def test_signals_in_time_are_as_many_as_intervals_fit(now, timeout, interval):
    timer = ShutdownTimer.start(max(1.0, now), timeout, interval)
    for _ in range(50):
        timer = timer.signal(timer.next_signal, "acpi")
    assert timer.signalled == pytest.approx(timer.begun + 49 * interval, abs=1e-2)
    assert timer.left(timer.begun) == timer.deadline - timer.begun


@given(clock_of)
def test_what_is_written_is_what_is_read(timer):
    assert ShutdownTimer.load(timer.text) == ShutdownTimer.load(timer.facts) == timer
    assert ShutdownTimer.load(json.dumps(timer.facts | {"colour": "red"})) == timer, "as a newer version writes it"


def test_what_an_older_version_wrote_is_read():
    assert ShutdownTimer.load('{"begun": 1, "deadline": 61, "interval": 10}') == ShutdownTimer(1.0, 61.0, 10.0)


@given(st.recursive(st.none() | st.booleans() | st.floats() | texts, lambda some: st.lists(some) | st.dictionaries(
    st.sampled_from(["begun", "deadline", "interval", "signals", "x"]), some)))  # fmt: skip
def test_nonsense_is_no_clock(kept):
    for said in (kept, json.dumps(kept)):
        found = ShutdownTimer.load(said)
        assert found is None or (max(found.begun, found.deadline) < FAR and found.words())
    assert ShutdownTimer.load("{") is None
    assert ShutdownTimer.load("") is None


def test_who_sets_the_wall_clock_gives_and_takes_no_grace(monkeypatch: pytest.MonkeyPatch):
    wall = time.time
    timer = ShutdownTimer.start(wall(), 60, 10).signal(wall(), "acpi")
    for jump in (-3600, 3600):
        monkeypatch.setattr(time, "time", lambda jump=jump: wall() + jump)
        read = ShutdownTimer.load(timer.text)
        assert read.now() - timer.begun < 5
        assert 5 < read.wait <= 10


def test_after_another_start_of_the_host_the_wall_clock_is_all_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path):
    timer = replace(ShutdownTimer.start(time.time() - 100, 60, 10), boot="of another start", offset=12345.0)
    assert timer.now() == pytest.approx(time.time(), abs=1)
    assert timer.wait == 0
    monkeypatch.setattr(timers, "BOOT_ID", tmp_path / "missing")
    timers._boot_id.cache_clear()
    try:
        assert ShutdownTimer.start(100.0, 60, 10).now() == pytest.approx(time.time(), abs=1)
    finally:
        timers._boot_id.cache_clear()


BEGUN = ShutdownTimer(1000.0, 1060.0, 10.0)
SIGNALLED = BEGUN.signal(1000.0, "agent").signal(1010.0, "acpi").signal(1020.0, "agent")


@pytest.mark.parametrize(
    ("timer", "words"),
    [
        (BEGUN, "0 signals; forced off at 1970-01-01T00:17:40Z unless it shuts down"),
        (BEGUN.signal(1000.0, "acpi").end(1007.24), "guest shut down in 7.2 s, 1 signal (acpi)"),
        (SIGNALLED.forcing().end(1060.3), "forced off after 60 s, 3 signals (agent, acpi)"),
        (BEGUN.signal(1, "acpi").forcing("it slept").end(1021), "forced off after 21 s: it slept, 1 signal (acpi)"),
        (SIGNALLED.end(1025.0, "forced"), "forced off after 25 s: its power was cut, 3 signals (agent, acpi)"),
        (SIGNALLED.forcing().end(1060.0, "guest"), "guest shut down in 60.0 s, 3 signals (agent, acpi)"),
        (SIGNALLED.end(1600.0), "guest was found off after 600.0 s, 3 signals (agent, acpi)"),
        (SIGNALLED.end(1003.0, "crashed"), "guest crashed after 3.0 s, 3 signals (agent, acpi)"),
        (SIGNALLED.end(1003.0, "gone"), "guest was gone after 3.0 s, 3 signals (agent, acpi)"),
        (SIGNALLED.end(1003.0, "left"), "given up after 3.0 s, 3 signals (agent, acpi)"),
        (replace(BEGUN, signalled=1050.0).forcing().end(1060.0), "forced off after 60 s, 0 signals"),
        (ShutdownTimer(1000.0, 1000.0, 10.0).forcing().end(1000.1), "forced off at once"),
        (BEGUN.forcing("it was paused").end(1000.1), "forced off at once: it was paused"),
    ],
)
def test_how_it_ended_in_words(timer, words):
    assert timer.words() == words
