"""A cell's SQLite file is moved away under processes that have it open, and back: nothing is made, nothing is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import OperationalError, close_old_connections, connections, transaction

from cells import circuit_breaker, scatter
from cells.context import target_cell
from cells.models import Cell, HostMapping
from compute.models import Service
from tests.cells import rows
from tests.cells.test_scatter import until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
ENDINGS = ("", "-wal", "-shm")


@dataclass
class Moved:
    """A cell with a host h1, open in this thread (as a worker has it) and in a pool's (as an API has)."""

    cell: Cell
    file: Path
    away: Path

    def move(self, *endings: str) -> None:
        for ending in endings:
            os.rename(f"{self.file}{ending}", f"{self.away}{ending}")

    def bring_back(self, *endings: str) -> None:
        for ending in reversed(endings):  # the file last: whatever opens it finds its WAL
            os.rename(f"{self.away}{ending}", f"{self.file}{ending}")

    def hosts(self) -> list[str]:
        """As this thread's connection, and one that nothing else has used, read them."""
        with target_cell(self.cell):
            mine = list(Service.objects.order_by("host").values_list("host", flat=True))
        with closing(sqlite3.connect(f"file:{self.file}?mode=rw", uri=True)) as other:
            assert [host for (host,) in other.execute("SELECT host FROM compute_service ORDER BY host")] == mine
        return mine


@pytest.fixture
def moved(cells, run, tmp_path, settings) -> Iterator[Moved]:
    """Its WAL has rows that are nowhere else."""
    settings.CELL_RETRY_INTERVAL = 0.2
    home = tmp_path / "home"
    home.mkdir()
    file = home / "cell.sqlite3"
    cell = Cell.objects.create(id=str(uuid4()), name="moved", database_url=f"sqlite:///{file}")
    assert run("cell_migrate", "--name", "moved").code == 0
    rows.service(cell, "h1")
    assert scatter.ask_one(cell, read) == ["h1"]
    assert Path(f"{file}-wal").stat().st_size > 0
    yield Moved(cell, file, tmp_path / "away.sqlite3")
    connections[cell.alias].close()


def read(_: Cell) -> list[str]:
    return list(Service.objects.order_by("host").values_list("host", flat=True))


@pytest.mark.parametrize("endings", [("",), ENDINGS], ids=["wal and shm stay", "all three"])
def test_a_file_that_was_moved_away_is_not_made_anew_and_works_when_it_is_back(moved, endings):
    """An empty file took its place, what had been accepted was shown as before, and moved back: disk I/O error."""
    left = set(os.listdir(moved.file.parent))
    moved.move(*endings)
    for _ in range(2):
        with target_cell(moved.cell), pytest.raises(OperationalError, match="is missing"):
            Service.objects.update(disabled_reason="written")
        close_old_connections()
    assert scatter.ask_one(moved.cell, read) == scatter.CellFailure("missing: there is no such file")
    assert set(os.listdir(moved.file.parent)) == left - {f"cell.sqlite3{ending}" for ending in endings}

    moved.bring_back(*endings)

    rows.service(moved.cell, "h2")  # at once, whatever the breaker thinks
    until(lambda: not circuit_breaker.known_down(moved.cell.id))
    with ThreadPoolExecutor(8) as callers:  # over every connection of the pool
        answers = callers.map(lambda _: scatter.ask_one(moved.cell, read), range(32))
        assert all(found == ["h1", "h2"] for found in answers)
    assert moved.hosts() == ["h1", "h2"]


def test_the_next_request_of_a_thread_that_had_the_file_open_is_no_500(moved):
    """Django looks at the connections of the thread before a request, outside of all that catches errors."""
    with target_cell(moved.cell):
        Service.objects.get()
    moved.move("")
    close_old_connections()
    assert connections[moved.cell.alias].connection is None
    moved.bring_back("")


def test_another_file_in_its_place_is_read_by_every_connection(moved):
    with closing(sqlite3.connect(moved.file)) as source, closing(sqlite3.connect(moved.away)) as backup:
        source.backup(backup)
        backup.execute("UPDATE compute_service SET host = 'from-the-backup'")
        backup.commit()
    for ending in ENDINGS:
        os.rename(f"{moved.file}{ending}", f"{moved.file}{ending}.old")
    shutil.copy(moved.away, moved.file)
    assert moved.hosts() == ["from-the-backup"]
    assert scatter.ask_one(moved.cell, read) == ["from-the-backup"]


def test_a_transaction_ends_in_the_file_it_began_in(moved):
    with target_cell(moved.cell) as alias:
        with transaction.atomic(using=alias):
            Service.objects.update(disabled_reason="before")
            moved.move("")
            Service.objects.update(disabled_reason="after")
        with pytest.raises(OperationalError, match="is missing"):
            Service.objects.get()
        moved.bring_back("")
        assert Service.objects.get().disabled_reason == "after"


def test_a_file_that_cannot_be_opened_is_said_to_be_so(cells):
    """A name that is too long, as root may read everything."""
    cell = Cell(id=str(uuid4()), name="x", database_url=f"sqlite:////{'x' * 300}")
    assert scatter.ask_one(cell, read) == scatter.CellFailure("refused: the file cannot be opened")


def test_cell_migrate_makes_no_empty_file_for_a_cell_that_has_hosts(moved, run):
    HostMapping.objects.create(host="h1", cell=moved.cell)
    moved.move("")
    ended = run("cell_migrate", "--name", "moved")
    assert ended.code == 1
    assert "is missing, and the cell has hosts or servers: restore it" in ended.out
    assert not moved.file.exists()
    moved.bring_back("")
    assert run("cell_migrate", "--name", "moved").code == 0
    assert moved.hosts() == ["h1"]
