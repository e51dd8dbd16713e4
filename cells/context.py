"""The targeted cell: which cell the running code reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cells import brokers, databases
from cells.models import Cell

_current: ContextVar[str | None] = ContextVar("cell_alias", default=None)


class NoCellTargeted(RuntimeError):
    """A cell's record was used outside `target_cell()`: a bug. No cell is guessed."""


def current_alias() -> str:
    """Return the database alias of the targeted cell. Raises NoCellTargeted."""
    alias = _current.get()
    if alias is None:
        raise NoCellTargeted("no cell is targeted; wrap the call in target_cell(cell)")
    return alias


@contextmanager
def target_cell(cell: Cell | str) -> Iterator[str]:
    """Direct every cell record inside the block to `cell` (a Cell, or a registered alias); yield its alias."""
    alias = cell if isinstance(cell, str) else register(cell)
    token = _current.set(alias)
    try:
        yield alias
    finally:
        _current.reset(token)


def register(cell: Cell) -> str:
    """Make the cell's database and broker usable in this process; return the database alias."""
    brokers.register(cell)
    return databases.register(cell)
