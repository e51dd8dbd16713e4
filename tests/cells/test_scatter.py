"""A cell that is down is an answer, and costs the others nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cells import health, scatter
from compute.models import Service
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def hung():
    """Whoever waits for this cell waits until the test ends."""
    gate = threading.Event()
    yield gate
    gate.set()


def hosts(_):
    return list(Service.objects.values_list("host", flat=True))


def test_every_cell_answers_for_itself(cells):
    for name in ("cell1", "cell2"):
        rows.service(cells[name], f"h-{name}")
    gathered = scatter.gather(cells.values(), hosts)
    assert gathered.down == {}
    assert gathered.answers[cells["cell1"].id] == ["h-cell1"]
    assert gathered.answers[cells["cell2"].id] == ["h-cell2"]


def test_a_refused_cell_is_down_and_is_not_asked_again(cells, lost, settings):
    settings.CELL_RETRY_INTERVAL = 60
    asked = []

    def ask(cell):
        asked.append(cell.name)
        return hosts(cell)

    for _ in range(3):
        gathered = scatter.gather([*cells.values(), lost], ask)
        assert gathered.down[lost.id].reason == "OperationalError"
        assert len(gathered.answers) == 3
    assert asked.count("lost") == 1


def test_an_error_in_the_question_is_a_bug_and_is_raised(cells):
    def ask(cell):
        raise KeyError(cell.name)

    with pytest.raises(KeyError):
        scatter.one(cells["cell1"], ask)
    assert health.known_down(cells["cell1"].id) == ""


def test_a_cell_that_hangs_costs_one_deadline_once(cells, hung, settings):
    settings.CELL_RETRY_INTERVAL = 60
    slow = cells["cell2"].id

    def ask(cell):
        return hung.wait(20) if cell.id == slow else cell.name

    started = time.monotonic()
    first = scatter.gather(cells.values(), ask, timeout=0.3)
    assert time.monotonic() - started < 1.5
    assert first.down[slow].reason == "did not answer in time"
    assert sorted(first.values()) == ["cell0", "cell1"]
    started = time.monotonic()
    second = scatter.gather(cells.values(), ask, timeout=5)
    assert time.monotonic() - started < 1  # remembered, not waited for
    assert slow in second.down


def test_many_requests_at_once_while_a_cell_hangs(cells, hung, settings):
    settings.CELL_RETRY_INTERVAL = 60
    slow = cells["cell2"].id

    def ask(cell):
        return hung.wait(20) if cell.id == slow else cell.name

    def request(_):
        return scatter.gather(list(cells.values()), ask, timeout=1.0)

    started = time.monotonic()
    with ThreadPoolExecutor(20) as callers:
        found = list(callers.map(request, range(40)))
    assert time.monotonic() - started < 6
    assert all(sorted(one.values()) == ["cell0", "cell1"] and slow in one.down for one in found)


def test_a_cell_that_is_back_is_asked_after_the_interval(cells, settings):
    settings.CELL_RETRY_INTERVAL = 0.05
    cell = cells["cell1"]
    health.seen_down(cell.id, "was away")
    assert isinstance(scatter.one(cell, hosts), scatter.Down)
    deadline = time.monotonic() + 5
    while isinstance(scatter.one(cell, hosts), scatter.Down):
        assert time.monotonic() < deadline
    assert health.known_down(cell.id) == ""


def test_one_caller_per_interval_looks_again(settings):
    settings.CELL_RETRY_INTERVAL = 0.05
    health.seen_down("c", "away")
    deadline = time.monotonic() + 5
    while health.known_down("c"):
        assert time.monotonic() < deadline
    settings.CELL_RETRY_INTERVAL = 60
    health.seen_down("c", "away")
    assert health.known_down("c") == "away"
