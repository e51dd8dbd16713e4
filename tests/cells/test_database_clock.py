"""Times are compared by the database's clock, on SQLite (which keeps text) as on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells import database_clock
from cells.models import BuildRequest

ALMOST_NOW = pytest.approx(0.0, abs=30.0)  # the tests' databases are on this machine


@pytest.fixture
def request_of(cells):
    """A row with two times."""

    def made(**times):
        BuildRequest.objects.all().delete()
        return BuildRequest.objects.create(
            server_id="s", project_id="p", user_id="u", request_id="r", instance={}, created_at=timezone.now(), **times
        )  # fmt: skip

    return made


def test_it_is_read_with_a_time_zone(cells):
    read = [database_clock.read(alias) for alias in ("default", cells["cell1"].alias)]
    assert [(timezone.now() - one).total_seconds() for one in read] == [ALMOST_NOW, ALMOST_NOW]


@pytest.mark.parametrize("seconds", [0.0, 30.0, -30.0, 86400.0, 0.25])
def test_a_time_it_has_written_is_read_as_that_time(request_of, seconds):
    request_of()
    BuildRequest.objects.update(sent_at=database_clock.now(seconds))
    ahead = (BuildRequest.objects.get().sent_at - timezone.now()).total_seconds()
    assert ahead - seconds == ALMOST_NOW


@pytest.mark.parametrize(("ahead", "over"), [
    (None, True), (-86400, True), (-1, True), (0, True), (5, False), (25, False), (60, True), (3600, True),
    (86400, True), (365 * 86400, True),
])  # fmt: skip
@pytest.mark.parametrize("whole", [True, False], ids=["whole second", "microseconds"])
def test_a_wait_is_over_when_it_was_none_has_come_or_is_longer_than_any(request_of, ahead, over, whole):
    until = None if ahead is None else timezone.now() + timedelta(seconds=ahead)
    request_of(lease_until=until and until.replace(microsecond=0) if whole else until)
    assert BuildRequest.objects.filter(database_clock.is_over("lease_until", 30)).exists() is over


def test_a_wait_the_database_began_lasts_as_long_as_it_may(request_of):
    request_of()
    BuildRequest.objects.update(lease_until=database_clock.now(30))
    assert not BuildRequest.objects.filter(database_clock.is_over("lease_until", 30)).exists()
    BuildRequest.objects.update(lease_until=database_clock.now())
    assert BuildRequest.objects.filter(database_clock.is_over("lease_until", 30)).exists()


@pytest.mark.parametrize(("ahead", "recent"), [
    (None, False), (-86400, False), (-61, False), (-55, True), (0, True), (55, True), (65, False), (86400, False),
])  # fmt: skip
def test_what_is_long_ago_or_far_ahead_is_not_recent(request_of, ahead, recent):
    request_of(sent_at=None if ahead is None else timezone.now() + timedelta(seconds=ahead))
    assert BuildRequest.objects.filter(database_clock.is_recent("sent_at", 60)).exists() is recent
