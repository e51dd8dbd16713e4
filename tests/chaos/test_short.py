"""A short run of `make chaos`: one seed, and the points at which most can be spilled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import points, power, run
from tests.chaos.place import Place, opened
from tests.chaos.supervisor import Supervisor
from tests.live.cloud import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]
POINTS = [
    "submit.committed@api", "step.received@host", "step.worked@host/soft reboot", "step.committed@host",
    "step.worked@conductor", "reboot_hard.die",
]  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """Two cells of two hosts, on SQLite files."""
    with opened(sqlite=True) as found:
        yield found


def test_a_cloud_that_is_harmed_all_the_time_spills_nothing(place: Place):
    verdict = run.seed(place, seed=1, operations=80, seconds=150)  # it ends with its 80th; 15 s usually
    assert not verdict.findings, verdict.culprits
    assert sum(one.accepted is True for one in verdict.asked) >= 80
    assert verdict.deaths >= 4


def test_machines_switched_by_hand_while_everything_else_happens_are_on_record_as_they_are(place: Place):
    tally, _ = power.play(place, rounds=20, seed=1)
    place.spilled |= bool(tally.wrong)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.rounds == 20
    assert {"carried out", "superseded", "so already"} <= tally.events.keys()


def test_a_process_killed_at_a_bad_moment_spills_nothing(place: Place):
    verdicts = points.all_of_them(place, POINTS)
    for verdict in verdicts:
        assert not verdict.findings, f"{verdict.title}: {verdict.findings}{verdict.culprits}"


def test_of_two_workers_of_one_name_the_older_one_ends(place: Place):
    supervisor = Supervisor(place, run.say)
    with supervisor.watching():
        assert supervisor.harm("host2", "twin", 0)
        eventually("the first one has ended", lambda: supervisor.deaths["host2"], 30)  # and is started again
        left = run.one_of_each(supervisor)
        run.rest(place, supervisor)
    assert not left
