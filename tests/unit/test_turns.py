"""Requests of a process take turns: in the order they came, and nobody waits with one that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from cloud.serving import fair_queue
from cloud.serving.fair_queue import Turns

SOON = 10.0  # seconds


@pytest.fixture
def requests() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends by itself only where a test says so."""
    monkeypatch.setattr(fair_queue, "LONGEST", 600.0)


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


def test_while_one_waits_for_something_the_others_have_their_turn_and_then_it_is_before_them(requests):
    taken, comes, second_ends, done = Turns(), threading.Event(), threading.Event(), list[str]()

    def waits() -> None:
        with fair_queue.away():
            comes.wait(SOON)
        done.append("first")

    def works() -> None:
        second_ends.wait(SOON)
        done.append("second")

    all_of_them = [begun(requests, taken, waits)]
    begun(requests, taken, lambda: None).result(SOON)
    assert not all_of_them[0].done()
    all_of_them += [begun(requests, taken, works), begun(requests, taken, lambda: done.append("third"))]
    comes.set()
    time.sleep(0.05)
    assert done == []
    second_ends.set()
    for one in all_of_them:
        one.result(SOON)
    assert done == ["second", "first", "third"]


def test_who_waits_and_says_nothing_is_not_waited_for_long(requests, monkeypatch):
    monkeypatch.setattr(fair_queue, "LONGEST", 0.2)
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


def test_who_is_away_does_not_end_the_turn_of_another(requests):
    taken, comes, second_ends, third = Turns(), threading.Event(), threading.Event(), threading.Event()

    def fails() -> None:
        with fair_queue.away():
            comes.wait(SOON)
            raise ValueError

    first = begun(requests, taken, fails)
    second = begun(requests, taken, lambda: second_ends.wait(SOON))
    last = begun(requests, taken, third.set)
    comes.set()
    assert not third.wait(0.2)
    second_ends.set()
    with pytest.raises(ValueError):
        first.result(SOON)
    second.result(SOON)
    last.result(SOON)


def test_where_nobody_takes_turns_nobody_is_away():
    with fair_queue.away():
        pass
