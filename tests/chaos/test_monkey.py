"""The harm of `make chaos`: decided by its seed, and hard on everybody."""

from __future__ import annotations

from itertools import pairwise

from tests.chaos.monkey import schedule

NAMES = ["api", "conductor-cell1", "host1", "host2", "postgres", "redis-cell1", "redis-global", "scheduler"]


def test_a_seed_is_a_schedule():
    assert schedule(7, NAMES) == schedule(7, list(reversed(NAMES)))
    assert schedule(7, NAMES) != schedule(8, NAMES)


def test_every_one_to_two_seconds_something_is_harmed_and_nobody_is_spared():
    harms = schedule(1, NAMES)
    assert all(1 <= after.at - before.at <= 2 for before, after in pairwise(harms))
    assert all(0 <= harm.away <= 3 for harm in harms)
    assert {(harm.name, harm.how) for harm in harms} >= {
        (name, how) for name in NAMES for how in ("SIGTERM", "SIGKILL")
    }
    assert {harm.name for harm in harms if harm.how == "wipe"} == {"redis-cell1", "redis-global"}
