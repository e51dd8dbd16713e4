"""Garbage of the API is taken out between requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from cloud.serving import gc_tuning


class Thing:
    """Something that holds itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    """Nothing is collected but where a test says so."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def left(count: int) -> weakref.ref[Thing]:
    """So much garbage; one of it."""
    return [weakref.ref(Thing()) for _ in range(count)].pop()


def test_a_little_is_left_until_there_is_more():
    one = left(gc_tuning.SOME // 10)
    gc_tuning.take_out()
    assert one() is not None
    left(gc_tuning.SOME)
    gc_tuning.take_out()
    assert one() is None


def test_what_was_in_use_at_the_time_is_found_later():
    used = [Thing() for _ in range(gc_tuning.SOME)]
    one = weakref.ref(used[0])
    gc_tuning.take_out()
    used.clear()
    for _ in range(gc_tuning.ROUNDS + 1):
        left(gc_tuning.SOME)
        gc_tuning.take_out()
    assert one() is None


def test_what_was_in_use_for_long_too():
    used = [Thing() for _ in range(gc_tuning.SOME)]
    one = weakref.ref(used[0])
    for _ in range(2 * gc_tuning.ROUNDS):
        left(gc_tuning.SOME)
        gc_tuning.take_out()
    used.clear()
    for _ in range(2 * gc_tuning.ROUNDS**2):
        left(gc_tuning.SOME)
        gc_tuning.take_out()
    assert one() is None
