"""Processes of the API have the machine one after the other, as their requests came; whoever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cloud.serving import cpu_slots
from cloud.serving.cpu_slots import Places

SOON = 10.0  # seconds
fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Worker:
    """As much of gunicorn's as is asked for."""

    age: int


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on without a place, but where a test says so."""
    monkeypatch.setattr(cpu_slots, "LONGEST", 600.0)


@contextmanager
def request(machine: Places, age: int, came: float, work: Callable[[], Any] = lambda: None) -> Iterator[Any]:
    """A request in a process of its own. It has begun to wait when the block begins."""

    def run() -> None:
        machine.is_for(Worker(age))  # type: ignore[arg-type]
        machine.take(came)
        work()
        machine.give()

    process = fork.Process(target=run)
    process.start()
    time.sleep(0.15)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_who_came_first_is_first_whichever_process_it_is(tmp_path):
    machine, go, said = Places(1, 8), fork.Event(), tmp_path / "said"

    def say(name: str) -> None:
        with said.open("a") as file:
            file.write(name)

    with ExitStack() as stack:
        stack.enter_context(request(machine, 1, 1.0, lambda: go.wait(SOON)))
        others = [(2, 4.0, "d"), (3, 2.0, "b"), (12, 3.0, "c")]
        started = [stack.enter_context(request(machine, age, came, lambda name=name: say(name)))
                   for age, came, name in others]  # fmt: skip
        assert not said.exists()
        go.set()
        for one in started:
            one.join(SOON)
            assert one.exitcode == 0
    assert said.read_text() == "bcd"


def test_there_are_as_many_at_once_as_places():
    machine, go = Places(2, 8), fork.Event()
    inside = fork.Value("i", 0)

    def work() -> None:
        with inside.get_lock():
            inside.value += 1
        go.wait(SOON)

    with ExitStack() as stack:
        started = [stack.enter_context(request(machine, age, age, work)) for age in range(1, 5)]
        assert inside.value == 2
        go.set()
        for one in started:
            one.join(SOON)
    assert inside.value == 4


def test_the_place_of_one_that_was_killed_is_the_next_ones():
    machine, never = Places(1, 8), fork.Event()
    with (
        request(machine, 1, 1.0, lambda: never.wait(60)) as holds,
        request(machine, 2, 2.0, lambda: never.wait(60)) as waits,
        request(machine, 3, 3.0) as last,
    ):
        os.kill(waits.pid, signal.SIGKILL)
        os.kill(holds.pid, signal.SIGKILL)
        for process, age in ((waits, 2), (holds, 1)):
            process.join(SOON)
            machine.gone(Worker(age))
        last.join(SOON)
        assert last.exitcode == 0


def test_who_waits_for_a_place_too_long_goes_on_without(monkeypatch):
    monkeypatch.setattr(cpu_slots, "LONGEST", 0.3)
    machine, never = Places(1, 8), fork.Event()
    with request(machine, 1, 1.0, lambda: never.wait(60)), request(machine, 2, 2.0) as second:
        second.join(SOON)
        assert second.exitcode == 0


def test_who_has_a_place_for_long_keeps_nobody_out(monkeypatch):
    """Somebody uploads an image, slowly."""
    monkeypatch.setattr(cpu_slots, "LONGEST", 1.0)
    machine, never = Places(1, 8), fork.Event()
    with request(machine, 1, 1.0, lambda: never.wait(60)):
        time.sleep(1)
        machine.is_for(Worker(2))  # type: ignore[arg-type]
        for came in (2.0, 3.0):
            begun = time.monotonic()
            machine.take(came)
            assert time.monotonic() - begun < 0.7
            machine.give()


def test_however_many_were_killed_each_has_a_row_of_its_own():
    """Rows were shared by every so many workers once: whoever ended took another's place along."""
    machine, never = Places(2, 4), fork.Event()
    with request(machine, 1, 1.0, lambda: never.wait(60)):
        for age in range(2, 12):
            with request(machine, age, float(age)) as one:
                one.join(SOON)
                assert one.exitcode == 0
            machine.gone(Worker(age))
        with request(machine, 12, 12.0, lambda: never.wait(60)), request(machine, 13, 13.0) as third:
            third.join(0.5)
            assert third.is_alive(), "both places are taken"


def test_a_process_without_a_name_takes_no_place():
    machine = Places(1, 8)
    machine.take(1.0)
    machine.take(2.0)
    machine.give()
