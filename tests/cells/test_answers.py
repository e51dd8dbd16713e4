"""How quickly each cell answers, and why one does not."""

from __future__ import annotations

import json
import socket
import time

import pytest

from cells import broker_probes, circuit_breaker, probes
from cells.models import Cell
from tests.machine import fair

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_every_cell_says_how_quickly_it_answers_or_why_not(cells, lost):
    Cell.objects.filter(pk=cells["cell1"].pk).update(broker_url="redis://127.0.0.1:1/0")
    said = probes.ask(Cell.objects.all())
    assert 0 < said[cells["cell1"].id].database.seconds < 2
    assert said[cells["cell1"].id].broker.trouble
    assert said[cells["cell1"].id].outage is None
    assert said[lost.id].database.text == "missing: there is no such file"
    assert said[lost.id].broker.seconds is not None  # in memory
    assert said[lost.id].outage.reason == "missing: there is no such file"
    assert said[cells["cell0"].id].broker.text == "-"


def test_a_broker_that_says_nothing_is_late_and_holds_one_thread(cells, settings):
    settings.CELL_TIMEOUT = 0.3
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"amqp://u:p@127.0.0.1:{server.getsockname()[1]}//"
        Cell.objects.filter(pk=cells["cell1"].pk).update(broker_url=url)
        began = time.monotonic()
        for _ in range(3):
            said = probes.ask(Cell.objects.all())
        assert time.monotonic() - began < fair(3)
        assert said[cells["cell1"].id].broker.text == "did not answer in time"
        assert said[cells["cell2"].id].database.seconds is not None
        assert [asked for asked, _ in broker_probes._asked].count(url) == 1


def test_the_list_of_cells_has_their_health_and_names_the_one_that_is_down(run, cells, lost):
    rows = {row["name"]: row for row in json.loads(run("cell_list", "--json").out)}
    assert rows["cell1"]["database"].endswith("ms")
    assert rows["lost"]["database"] == "missing: there is no such file"
    assert circuit_breaker.known_down(lost.id)
    table = run("cell_list").out.splitlines()
    assert table[0].split()[:4] == ["NAME", "UUID", "DATABASE", "BROKER"]
    assert any(line.startswith("lost") and "missing: there is no such file" in line for line in table)
