"""When a live migration ends, from what it reports."""

from __future__ import annotations

import math

import pytest

from compute.migration.watch import Forecast
from compute.virt.base import Progress


def told(*reports: tuple[float, int], total: int = 1000) -> Forecast:
    forecast = Forecast()
    for seconds, left in reports:
        forecast.add(Progress(memory_total=total, memory_left=left, seconds=seconds))
    return forecast


@pytest.mark.parametrize(
    ("reports", "ends_in", "words"),
    [
        ((), None, ""),
        (((0, 1000), (2, 900)), None, ""),  # too short a time to say
        (((0, 1000), (10, 900)), 90, ", ends in about 90 s"),
        (((100, 50), (110, 0)), 0, ", ends in about 0 s"),
        (((0, 1000), (10, 1000)), math.inf, ", comes no nearer to its end"),
        (((0, 500), (10, 900)), math.inf, ", comes no nearer to its end"),  # the guest writes faster than is copied
        (((0, 1000), (20, 300), (25, 290), (30, 280)), 140, ", ends in about 140 s"),  # the last seconds count
    ],
)
def test_the_end_is_forecast_from_the_last_seconds(reports, ends_in, words):
    forecast = told(*reports)
    assert forecast.seconds_left() == (None if ends_in is None else pytest.approx(ends_in))
    assert forecast.words() == words


def test_without_figures_there_is_no_forecast():
    assert told((0, 0), (20, 0), total=0).seconds_left() is None
