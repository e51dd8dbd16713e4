"""The tracker: what is in progress, and what may begin."""

from __future__ import annotations

import threading

import pytest

from tasks.tracker import ACCEPTED_WHILE_DRAINING, Kind, Tracker, Work


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


def request(tracker: Tracker, name: str = "pause") -> Work:
    return tracker.begin(Work(Kind.REQUEST, name))


@pytest.mark.parametrize("kind", Kind)
def test_what_may_begin_while_a_process_drains_is_declared_for_each_kind(kind, tracker):
    tracker.refuse(refusing=True)
    work = tracker.begin(Work(kind, "x"))
    assert work.refused == ("" if kind in ACCEPTED_WHILE_DRAINING else "draining")
    assert tracker.running() == ([] if work.refused else [work])
    assert tracker.refused() == work.refused


def test_what_has_begun_ends_and_somebody_is_told(tracker):
    ended = []
    tracker.tell(ended.append)
    work = request(tracker)
    tracker.refuse(refusing=True)
    assert tracker.running() == [work]
    tracker.end(work.key)
    tracker.end(work.key)
    assert (tracker.running(), ended) == ([], [work])


def test_requests_beyond_the_slots_are_left_in_the_journal_and_operations_are_not(tracker):
    tracker.bound(2)
    first, second, third = request(tracker), request(tracker), request(tracker)
    assert (first.refused, second.refused, third.refused) == ("", "", "full")
    assert tracker.begin(Work(Kind.OPERATION, "arrive")).refused == ""
    tracker.end(first.key)
    assert tracker.take_skipped() == 1  # room for one, and one was left
    assert tracker.take_skipped() == 0  # told once


def test_nobody_looks_for_more_when_nobody_was_refused(tracker):
    tracker.bound(2)
    tracker.end(request(tracker).key)
    assert tracker.take_skipped() == 0


def test_a_host_that_drains_looks_for_nothing_more(tracker):
    tracker.bound(1)
    first = request(tracker)
    request(tracker)
    tracker.refuse(refusing=True)
    tracker.end(first.key)
    assert tracker.take_skipped() == 0


def test_never_more_requests_at_once_than_slots_however_many_threads_ask(tracker):
    tracker.bound(3)
    most, lock = [0], threading.Lock()

    def work() -> None:
        for _ in range(300):
            mine = request(tracker)
            with lock:
                running = sum(one.kind is Kind.REQUEST for one in tracker.running())
                most[0] = max(most[0], running)
            tracker.end(mine.key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most[0] <= 3
    assert tracker.running() == []


# -- long operations


def long_one(tracker: Tracker) -> Work | None:
    """In a thread of its own, as each has."""
    work = tracker.begin(Work(Kind.OPERATION, "migrate"))
    if tracker.take_long_slot():
        return work
    tracker.end(work.key)
    return None


def test_long_operations_beyond_their_slots_are_left_in_the_journal_and_the_others_are_not(tracker):
    tracker.bound(2, 1)
    first = long_one(tracker)
    assert first is not None
    assert long_one(tracker) is None
    assert tracker.begin(Work(Kind.OPERATION, "stay")).refused == ""
    assert tracker.begin(Work(Kind.CALL, "console")).refused == ""
    tracker.end(first.key)
    assert tracker.take_long_skipped() == 1  # room for one, and one was left
    assert tracker.take_long_skipped() == 0  # told once
    assert long_one(tracker) is not None


def test_a_host_that_drains_looks_for_long_operations_it_has_begun_to_need(tracker):
    tracker.bound(1, 1)
    first = long_one(tracker)
    assert long_one(tracker) is None
    tracker.refuse(refusing=True)
    tracker.end(first.key)
    assert tracker.take_long_skipped() == 1


def test_never_more_long_operations_at_once_than_slots_however_many_threads_ask(tracker):
    tracker.bound(3, 3)
    most, lock = [0], threading.Lock()

    def work() -> None:
        for _ in range(300):
            mine = long_one(tracker)
            with lock:
                most[0] = max(most[0], sum(one.is_long for one in tracker.running()))
            if mine is not None:
                tracker.end(mine.key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most[0] <= 3
    assert tracker.running() == []
