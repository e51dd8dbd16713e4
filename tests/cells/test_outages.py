"""When a cell was down is on record, whichever process saw it; no request writes it."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import structlog
from django.db import OperationalError, connection
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cells import circuit_breaker, outages
from cells.models import CellOutage
from tests.cells.test_scatter import until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(autouse=True)
def _kept(settings):
    settings.KEEP_OUTAGES, settings.CELL_RETRY_INTERVAL = True, 0.2


@pytest.fixture
def row(cells):
    """Writes what another process saw of cell1: it began, ended and was confirmed so many seconds ago."""

    def write(name: str, began: float, ended: float | None, confirmed: float | None = None, **columns):
        now = timezone.now()
        return CellOutage.objects.create(
            cell=cells["cell1"], seen_by=name, began_at=now - timedelta(seconds=began),
            ended_at=None if ended is None else now - timedelta(seconds=ended),
            confirmed_at=now - timedelta(seconds=confirmed if ended is None else ended),
            **({"reason": "cut off"} | columns),
        )  # fmt: skip

    return write


def seen(cell) -> list[tuple[int, int, bool, bool, list[str]]]:
    """Of each incident: how long ago it began, how long it lasted, whether it goes on, whether that is sure, who."""
    now = timezone.now()
    return [
        (round((now - one.began_at).total_seconds()), round(one.seconds), one.is_open, one.is_sure, one.seen_by)
        for one in outages.of([cell.pk])[cell.pk]
    ]


def test_an_outage_and_its_end_are_written_and_not_by_the_request_that_met_it(cells):
    cell = cells["cell1"]
    with CaptureQueriesContext(connection) as queries:
        circuit_breaker.record_failure(cell.id, "cut off")
    assert not queries.captured_queries
    until(lambda: CellOutage.objects.filter(ended_at__isnull=False).exists())  # a look found it up
    written = CellOutage.objects.get()
    assert (written.cell, written.reason) == (cell, "cut off")
    assert written.began_at < written.ended_at == written.confirmed_at
    assert "pid" in written.seen_by
    assert not circuit_breaker.known_down(cell.id)


def test_an_outage_that_goes_on_is_confirmed_again_and_again(lost):
    circuit_breaker.record_failure(lost.id, "cut off")
    until(CellOutage.objects.exists)
    first = CellOutage.objects.get().confirmed_at
    until(lambda: CellOutage.objects.get().confirmed_at > first)
    assert CellOutage.objects.get().ended_at is None
    assert [one[2:4] for one in seen(lost)] == [(True, True)]


def test_a_global_database_that_is_away_delays_the_record_and_nothing_else(lost, monkeypatch):
    really, is_away, tries = CursorWrapper.execute, threading.Event(), []
    is_away.set()

    def execute(cursor, sql, params=None):
        if is_away.is_set() and "cells_celloutage" in sql:
            tries.append(sql)
            raise OperationalError("the server closed the connection")
        return really(cursor, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", execute)
    before = timezone.now()
    circuit_breaker.record_failure(lost.id, "cut off")
    until(lambda: len(tries) > 1)
    until(lambda: circuit_breaker.outage(lost.id).looks > 2)  # the looks go on
    circuit_breaker.record_recovery(lost.id)
    ended = timezone.now()
    is_away.clear()
    until(lambda: CellOutage.objects.filter(ended_at__isnull=False).exists())
    written = CellOutage.objects.get()
    assert before <= written.began_at <= written.ended_at <= ended


def test_what_several_processes_saw_at_once_is_one_outage(cells, row):
    row("api 1", 600, 540)
    row("api 2", 599, 530, reason="too slow")
    row("api 1", 300, 290)
    row("scheduler", 8000, 7000)  # not in the last hour
    found = outages.of([cells["cell1"].pk, "other"])
    assert found["other"] == []
    assert seen(cells["cell1"]) == [
        (300, 10, False, True, ["api 1"]), (600, 70, False, True, ["api 1", "api 2"]),
    ]  # fmt: skip
    assert found[cells["cell1"].pk][1].reasons == ["cut off", "too slow"]


def test_a_process_that_died_does_not_keep_an_outage_open(cells, row, settings):
    settings.CELL_RETRY_INTERVAL = 5.0
    row("api 1", 600, None, 400)
    assert seen(cells["cell1"]) == [(600, 200, False, False, ["api 1"])]
    row("api 2", 395, 100)  # it took over: one outage, whose end is known
    assert seen(cells["cell1"]) == [(600, 500, False, True, ["api 1", "api 2"])]
    row("api 3", 200, None, 2)
    assert seen(cells["cell1"]) == [(600, 600, True, True, ["api 1", "api 2", "api 3"])]


def test_what_this_process_knows_needs_not_be_written_yet(cells, settings):
    circuit_breaker._look, looks = None, circuit_breaker._look  # no thread: nothing is written
    try:
        circuit_breaker.record_failure(cells["cell1"].id, "cut off")
        assert [one[2] for one in seen(cells["cell1"])] == [True]
        circuit_breaker.record_recovery(cells["cell1"].id)
        assert [one[2] for one in seen(cells["cell1"])] == [False]
    finally:
        circuit_breaker._look = looks
    assert not CellOutage.objects.exists()


def test_a_cell_that_flaps_is_one_outage_and_few_lines(cells, settings):
    """Down and up every 1.3 s was 140 lines on the page of the cell."""
    settings.CELL_RETRY_INTERVAL = 5.0
    cell = cells["cell1"]
    with structlog.testing.capture_logs() as lines:
        for _ in range(20):
            circuit_breaker.record_failure(cell.id, "missing: there is no such file")
            circuit_breaker.record_recovery(cell.id)
        circuit_breaker.record_failure(cell.id, "wrong password")
    until(lambda: not outages.has_news())
    written = CellOutage.objects.get()
    assert (written.ended_at, written.reason) == (None, "missing: there is no such file; wrong password")
    assert [one[2:4] for one in seen(cell)] == [(True, True)]
    assert circuit_breaker.outage(cell.id).times == 21
    events = [line["event"] for line in lines]
    assert events.count("cell.down") == 1
    assert events.count("cell.flapping") == 4  # the 2nd, 4th, 8th and 16th time


def test_a_cell_that_flaps_is_looked_at_less_often_from_the_beginning(cells, settings):
    settings.CELL_RETRY_INTERVAL, pauses = 40.0, []
    for _ in range(4):
        circuit_breaker.record_failure(cells["cell1"].id, "away")
        pauses.append(round(circuit_breaker.outage(cells["cell1"].id).seconds_until_look))
        circuit_breaker.record_recovery(cells["cell1"].id)
    assert pauses == [10, 20, 40, 40]


def test_a_cell_that_was_up_for_a_while_has_a_new_outage(cells, settings):
    settings.CELL_RETRY_INTERVAL = 60.0
    circuit_breaker.record_failure(cells["cell1"].id, "away")
    circuit_breaker.record_recovery(cells["cell1"].id)
    found, _ = circuit_breaker._lately[cells["cell1"].id]
    circuit_breaker._lately[cells["cell1"].id] = found, time.monotonic()  # its minutes are over
    circuit_breaker.record_failure(cells["cell1"].id, "away")
    assert circuit_breaker.outage(cells["cell1"].id).times == 1
    until(lambda: not outages.has_news())
    assert CellOutage.objects.count() == 2


def test_several_processes_that_saw_a_cell_flap_saw_one_outage(cells, row, settings):
    settings.CELL_RETRY_INTERVAL = 5.0
    for number in range(10):
        row(f"api {number % 3}", 300 - 10 * number, 299 - 10 * number)
    assert seen(cells["cell1"]) == [(300, 91, False, True, ["api 0", "api 1", "api 2"])]


def test_records_older_than_a_day_go(cells, row):
    old = row("api 1", 100_000, 90_000)
    circuit_breaker.record_failure(cells["cell1"].id, "cut off")
    until(lambda: not CellOutage.objects.filter(pk=old.pk).exists())


def test_a_cell_that_is_forgotten_meanwhile_has_no_record(cells):
    circuit_breaker.record_failure("eeeeeeee-eeee-4eee-8eee-eeeeeeeeeeee", "cut off")
    until(lambda: not outages.has_news() and not circuit_breaker._down)
    assert not CellOutage.objects.exists()
