"""What the tests of resources share: how many queries a request costs, and a cell that is down."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from cells.models import Cell


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """`queries(call)`: what a call costs, over all databases and threads (cells are asked from others)."""
    counter = itertools.count()
    run = CursorWrapper.execute

    def counting(self: CursorWrapper, sql: str, params: Any = None) -> Any:
        next(counter)
        return run(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", counting)

    def cost(call: Callable[[], Any]) -> int:
        before = next(counter)
        call()
        return next(counter) - before - 1

    return cost


@pytest.fixture
def down_cell(
    cells: dict[str, Cell], monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> Iterator[Cell]:
    """A cell whose database nobody can open.

    Django's test case forbids databases it did not know when the test began; here one is the point.
    """
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", django_db_blocker._real_ensure_connection)
    cell = Cell.objects.create(
        id="33333333-3333-4333-8333-333333333333", name="cell3",
        database_url="sqlite:////proc/nowhere/dir/x.sqlite3",
    )  # fmt: skip
    yield cell
    if cell.alias in connections.databases:
        connections[cell.alias].close()
        del connections[cell.alias], connections.databases[cell.alias]


@pytest.fixture
def cut_off(
    cells: dict[str, Cell], monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any
) -> Iterator[Callable[..., None]]:
    """`cut_off(cell)`: from now on this cell's database does not answer; another URL is another way not to."""
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", django_db_blocker._real_ensure_connection)

    def cut(cell: Cell, url: str = "") -> None:
        Cell.objects.filter(pk=cell.pk).update(database_url=url or f"sqlite:////proc/nowhere/{cell.name}.sqlite3")

    known = {cell.alias: connections[cell.alias] for cell in cells.values()}
    yield cut
    for alias, connection in known.items():  # these very ones: the test run ends with them
        connections[alias].close()
        connections[alias], connections.databases[alias] = connection, connection.settings_dict
