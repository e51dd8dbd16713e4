"""Checking rows of the global database against the cells of their servers, a batch each time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from django.db.models import QuerySet

from cells import scatter
from cells.models import Cell, InstanceMapping

T = TypeVar("T")


class BatchCursor(dict[str, Any]):
    """The key at which the last batch ended, by cell or ""; without one the next batch is the first."""

    def next(self, rows: QuerySet[Any, Any], size: int, cell_id: str = "") -> list[Any]:
        """Return the next `size` rows in the order of their primary key, which is the first of their values."""
        following = rows.filter(pk__gt=self[cell_id]) if cell_id in self else rows
        batch = list(following.order_by("pk")[:size])
        self.pop(cell_id, None)
        if len(batch) == size:
            self[cell_id] = batch[-1][0]
        return batch


def by_cell(server_ids: Collection[str]) -> dict[str, set[str]]:
    """Return the servers that are in a cell, by the id of the cell."""
    found: dict[str, set[str]] = defaultdict(set)
    placed = InstanceMapping.objects.filter(pk__in=server_ids, cell__isnull=False)
    for server_id, cell_id in placed.values_list("pk", "cell_id"):
        found[str(cell_id)].add(server_id)
    return found


def ask_cells(
    servers: Mapping[str, set[str]], ask: Callable[[set[str]], T]
) -> Iterator[tuple[Cell, set[str], T]]:
    """Ask each cell about its servers; yield cell, servers and answer of those that answer."""
    for cell in Cell.objects.filter(pk__in=servers):
        mine = servers[cell.pk]
        answer = scatter.ask_one(cell, lambda _, mine=mine: ask(mine))  # type: ignore[misc]
        if not isinstance(answer, scatter.CellFailure):
            yield cell, mine, answer
