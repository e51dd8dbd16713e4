"""The harm of `make chaos`: decided by its seed, and hard on everybody."""

from __future__ import annotations

from itertools import pairwise

from tests.chaos import line
from tests.chaos.monkey import schedule

OTHERS = ["api", "line-cell1", "postgres", "redis-cell1", "redis-global"]
WORKERS = ["conductor-cell1", "host1", "host2", "scheduler"]
NAMES = [*OTHERS, *WORKERS]


def test_a_seed_is_a_schedule():
    assert schedule(7, NAMES) == schedule(7, list(reversed(NAMES)))
    assert schedule(7, NAMES) != schedule(8, NAMES)


def test_every_one_to_two_seconds_something_is_harmed_and_nobody_is_spared():
    harms = schedule(1, NAMES)
    assert all(1 <= after.at - before.at <= 2 for before, after in pairwise(harms))
    done = {(harm.name, harm.how) for harm in harms}
    assert done >= {(name, how) for name in NAMES if name != "line-cell1" for how in ("SIGTERM", "SIGKILL")}
    assert done >= {(name, how) for name in WORKERS for how in ("SIGSTOP", "twin", "clock")}
    assert done >= {("line-cell1", how) for how in line.HOWS}
    assert ("api", "SIGSTOP") in done
    assert {harm.name for harm in harms if harm.how == "wipe"} == {"redis-cell1", "redis-global"}


def test_some_pauses_are_longer_than_a_service_may_be_silent_and_no_clock_is_wrong_by_less_than_a_quarter_of_a_day():
    harms = [harm for seed in range(5) for harm in schedule(seed, NAMES)]
    pauses = [harm.seconds for harm in harms if harm.how == "SIGSTOP"]
    assert min(pauses) < 5 < 61 < max(pauses) <= 90
    assert {harm.hours for harm in harms if harm.how == "clock"} == {-24, -6, 6, 12, 24}
