"""The records of cells, by queries that are compiled once: nearly every request reads one of them or all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cells.compiled_query import CompiledQuery
from cells.models import Cell

COLUMNS = ("id", "name", "database_url", "broker_url", "disabled")  # what it takes to use a cell
_ALL = CompiledQuery(lambda: Cell.objects.values_list(*COLUMNS))


def every() -> list[Cell]:
    """Return all cells, ordered by id. Other columns than COLUMNS are read when they are used."""
    return [record(values) for values in _ALL.rows("default")]


def record(values: Sequence[Any]) -> Cell:
    """Return the cell with these values of COLUMNS."""
    return Cell.from_db("default", COLUMNS, values)
