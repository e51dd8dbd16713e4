"""Durations as operators type them and as systemctl shows them, and as people read them."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

import pytest

from cloud import arguments
from cloud.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("1.5", 1.5), ("5min", 300), ("3min 30s", 210), ("1d 2h 500ms", 93600.5), ("2 h", 7200),
     ("infinity", math.inf)],
)  # fmt: skip
def test_a_duration_is_seconds_or_a_time_span_of_systemd(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "1e3", "5 parsecs", "5min!", "min", "٣"])
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (7.4, "7 s"), (59.6, "1 min 0 s"), (303, "5 min 3 s"), (7200, "2 h 0 min"),
     (93600, "1 d 2 h")],
)  # fmt: skip
def test_people_read_the_two_largest_units(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (arguments.seconds, "infinity", "more than a year"), (arguments.positive_seconds, "0", "more than 0"),
        (arguments.whole_seconds, "1.5", "not a whole number of seconds"), (arguments.count, "0", "at least 1"),
        (arguments.count, "a", "at least 1"), (arguments.count_to_1000, "1001", "more than 1000"),
    ],
)  # fmt: skip
def test_an_argument_that_is_wrong_is_refused_with_the_reason(read, text, why):
    with pytest.raises(ArgumentTypeError, match=why):
        read(text)


def test_arguments_that_are_right_are_read():
    assert (arguments.whole_seconds("1min"), arguments.count("7"), arguments.count_to_1000("1000")) == (60, 7, 1000)
