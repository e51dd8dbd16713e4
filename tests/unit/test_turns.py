"""Requests of a process take turns: in the order they came, and nobody waits with one that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cloud import turns
from cloud.turns import Turns

SOON = 10.0  # seconds


@pytest.fixture
def requests() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends by itself only where a test says so."""
    monkeypatch.setattr(turns, "LONGEST", 600.0)


def begun(pool: ThreadPoolExecutor, taken: Turns, do: Callable[[], object]) -> Future[None]:
    """A request that stands in the queue, or has its turn already."""
    comes = threading.Event()

    def request() -> None:
        comes.set()
        with taken.one():
            do()

    future = pool.submit(request)
    assert comes.wait(SOON)
    time.sleep(0.05)
    return future


def test_requests_are_worked_on_one_after_the_other_as_they_came(requests):
    taken, first_ends, done = Turns(), threading.Event(), list[int]()
    all_of_them = [begun(requests, taken, lambda: first_ends.wait(SOON))]
    all_of_them += [begun(requests, taken, lambda number=number: done.append(number)) for number in range(6)]
    assert done == []
    first_ends.set()
    for one in all_of_them:
        one.result(SOON)
    assert done == [0, 1, 2, 3, 4, 5]


def test_who_waits_for_something_lets_the_next_one_in(requests):
    taken, comes = Turns(), threading.Event()

    def waits() -> None:
        turns.leave()
        comes.wait(SOON)

    waiting = begun(requests, taken, waits)
    begun(requests, taken, lambda: None).result(SOON)
    assert not waiting.done()
    comes.set()
    waiting.result(SOON)


def test_who_waits_and_says_nothing_is_not_waited_for_long(requests, monkeypatch):
    monkeypatch.setattr(turns, "LONGEST", 0.2)
    taken, comes = Turns(), threading.Event()
    waiting = [begun(requests, taken, lambda: comes.wait(SOON)) for _ in range(3)]
    asked = time.monotonic()
    begun(requests, taken, lambda: None).result(SOON)
    assert 0.3 < time.monotonic() - asked < 5
    assert not any(one.done() for one in waiting)
    comes.set()


def test_a_request_that_fails_ends_its_turn_too(requests):
    taken = Turns()

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        begun(requests, taken, fails).result(SOON)
    begun(requests, taken, lambda: None).result(SOON)


def test_who_left_does_not_end_the_turn_of_another(requests):
    taken, first_ends, second_ends, third = Turns(), threading.Event(), threading.Event(), threading.Event()

    def leaves() -> None:
        turns.leave()
        first_ends.wait(SOON)

    first = begun(requests, taken, leaves)
    second = begun(requests, taken, lambda: second_ends.wait(SOON))
    last = begun(requests, taken, third.set)
    first_ends.set()
    first.result(SOON)
    assert not third.wait(0.2)
    second_ends.set()
    second.result(SOON)
    last.result(SOON)


def test_where_nobody_takes_turns_nothing_is_left():
    turns.leave()
