"""A cell that is down is an answer, and costs the others nothing."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from cells import cell_threads, circuit_breaker, scatter
from cells.models import Cell
from compute.models import Service
from tests.cells import rows
from tests.machine import fair

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
    lost.database_url = "postgresql://nobody@127.0.0.1:1/refused"
    asked = []

    def ask(cell):
        asked.append(cell.name)
        return hosts(cell)

    for _ in range(3):
        gathered = scatter.gather([*cells.values(), lost], ask)
        assert gathered.down[lost.id].reason == "refused: nothing listens there"
        assert len(gathered.answers) == 3
    assert asked.count("lost") == 1


def test_an_error_in_the_question_is_a_bug_and_is_raised(cells):
    def ask(cell):
        raise KeyError(cell.name)

    with pytest.raises(KeyError):
        scatter.ask_one(cells["cell1"], ask)
    assert circuit_breaker.known_down(cells["cell1"].id) == ""


def test_a_cell_that_hangs_costs_one_deadline_once(cells, hung, settings):
    settings.CELL_RETRY_INTERVAL = 60
    slow = cells["cell2"].id

    def ask(cell):
        return hung.wait(20) if cell.id == slow else cell.name

    started = time.monotonic()
    first = scatter.gather(cells.values(), ask, timeout=0.3)
    assert time.monotonic() - started < fair(1.5)
    assert first.down[slow].reason == scatter.LATE
    assert sorted(first.values()) == ["cell0", "cell1"]
    started = time.monotonic()
    second = scatter.gather(cells.values(), ask, timeout=5)
    assert time.monotonic() - started < fair(1)  # remembered, not waited for
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
    assert time.monotonic() - started < fair(6)
    assert all(sorted(one.values()) == ["cell0", "cell1"] and slow in one.down for one in found)


def test_who_asks_a_little_later_gives_up_with_who_asked_first(cells, hung, settings):
    """Seen with 16 clients: each waited its own two seconds, the last until half a second after the first."""
    settings.CELL_RETRY_INTERVAL = 60
    slow = cells["cell2"].id
    begun, both = threading.Barrier(2), []

    def ask(cell):
        return hung.wait(20) if cell.id == slow else cell.name

    def later():
        begun.wait()
        time.sleep(0.3)
        both.append(scatter.gather(cells.values(), ask, timeout=20))

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(later)
        begun.wait()
        both.append(scatter.gather(cells.values(), ask, timeout=0.6))
        other.result(5)
    for found in both:
        assert found.down[slow].reason == scatter.LATE
        assert sorted(found.values()) == ["cell0", "cell1"]


def test_whoever_answers_while_another_is_waited_for_is_dealt_with_at_once(cells, hung):
    """However late it comes: what there is, is ready when the silent one is given up."""
    given, ready = [], threading.Event()

    def ask(cell):
        if cell.name == "cell1":
            assert ready.wait(20)
        return hung.wait(20) if cell.name == "cell2" else cell.name

    def meanwhile(answers):
        given.extend(answers)
        if "cell0" in given:
            ready.set()

    found = scatter.gather(cells.values(), ask, timeout=1.5, meanwhile=meanwhile)
    assert given == ["cell0", "cell1"]
    assert sorted(found.values()) == ["cell0", "cell1"]


def test_a_cell_that_is_back_is_found_by_a_look_of_our_own(cells, settings):
    settings.CELL_RETRY_INTERVAL = 0.2
    cell = cells["cell1"]
    circuit_breaker.record_failure(cell.id, "was away")
    assert isinstance(scatter.ask_one(cell, hosts), scatter.CellFailure)
    until(lambda: not circuit_breaker.known_down(cell.id))  # no request asked meanwhile
    assert scatter.ask_one(cell, hosts) == []


def test_no_request_waits_for_the_look_at_a_cell_that_is_down(lost, settings):
    settings.CELL_RETRY_INTERVAL = 0.1
    asked = []
    scatter.ask_one(lost, hosts)
    until(lambda: circuit_breaker.outage(lost.id).looks > 3)
    assert isinstance(scatter.ask_one(lost, asked.append), scatter.CellFailure)
    assert asked == []
    assert circuit_breaker.known_down(lost.id) == "missing: there is no such file"


def test_looks_become_rarer_and_never_rarer_than_the_interval(settings):
    settings.CELL_RETRY_INTERVAL = 8.0
    found, pauses = circuit_breaker.Outage("away"), []
    for _ in range(5):
        found = circuit_breaker._next(found)
        pauses.append(round(found.seconds_until_look))
    assert pauses == [2, 4, 8, 8, 8]


def test_a_cell_that_is_forgotten_is_nobodys_trouble(settings):
    settings.CELL_RETRY_INTERVAL = 0.1
    circuit_breaker.record_failure("c", "away")
    until(lambda: not circuit_breaker.known_down("c"))


def test_a_cell_that_accepts_and_never_answers_holds_up_nobody_and_no_thread(cells, silent, settings):
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 0.5, 60
    everybody = [*cells.values(), silent]
    started = time.monotonic()
    with ThreadPoolExecutor(16) as callers:
        found = list(callers.map(lambda _: scatter.gather(everybody, hosts), range(16)))
    assert time.monotonic() - started < fair(3)
    assert all(len(one.answers) == 3 and silent.id in one.down for one in found)
    assert circuit_breaker.known_down(silent.id) == scatter.LATE
    started = time.monotonic()
    scatter.gather(everybody, hosts)
    assert time.monotonic() - started < fair(0.4)


def test_a_process_that_is_too_busy_to_ask_does_not_call_the_cell_down(cells, hung, monkeypatch):
    monkeypatch.setattr(scatter, "JUST", 0.0)  # a new thread asks by the cell's threads
    cell = cells["cell2"]
    pool = [threading.Thread(target=scatter.ask_one, args=(cell, lambda _: hung.wait(20))) for _ in range(4)]
    for thread in pool:
        thread.start()
    until(lambda: cell_threads._pool(cell.id)._work_queue.qsize() == 0)
    with ThreadPoolExecutor(1) as fresh:
        gathered = fresh.submit(scatter.gather, [cell], hosts, timeout=0.2).result()
    assert gathered.down[cell.id].reason == scatter.BUSY
    assert circuit_breaker.known_down(cell.id) == ""
    hung.set()
    for thread in pool:
        thread.join(30)


@pytest.fixture
def silent(cells):
    """A cell whose database takes the call and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/silent"
        yield Cell.objects.create(id=str(uuid4()), name="silent", database_url=url)


def until(is_so):
    """Within a generous time."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_look_that_comes_too_late_does_not_call_the_cell_down_again(cells, settings):
    settings.CELL_RETRY_INTERVAL = 60
    cell = cells["cell1"]
    circuit_breaker.record_failure(cell.id, "cut off")
    circuit_breaker.record_recovery(cell.id)  # a request that was under way was answered
    circuit_breaker._looked(cell.id, "cut off")
    assert circuit_breaker.known_down(cell.id) == ""
