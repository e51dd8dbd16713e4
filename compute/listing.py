"""Lists of servers over all cells: each cell gives the keys of a page, the merge decides, each cell fills in.

Two queries per cell whatever the number of servers, and never more than a page of keys per cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Q

from cells import scatter
from cells.models import Cell, InstanceMapping
from cloud.errors import BadRequest
from compute import server_rows
from compute.models import Instance, Service
from compute.server_rows import ServerRow

SortKey = tuple[str, bool]  # column, descending
KeyRow = tuple[Any, ...]  # the sort columns' values, uuid last


@dataclass(slots=True)
class Query:
    """Which servers, in which order, how many, after which."""

    where: Q
    sort: list[SortKey]
    limit: int
    marker: str = ""
    with_services: bool = False


@dataclass(slots=True)
class Listed:
    """What was found. `down` are the cells that did not answer."""

    rows: list[ServerRow] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)
    down: list[Cell] = field(default_factory=list)


def servers(query: Query) -> Listed:
    """A page of servers, merged over the cells that answer. Raises BadRequest for an unknown marker."""
    cells = list(Cell.objects.all())
    if query.limit == 0:
        return Listed()
    where = query.where & _after(query, cells)
    keys = scatter.gather(cells, lambda cell: _keys(query, where))
    chosen = _merge(keys.answers, query)
    asked = [cell for cell in cells if cell.id in chosen]
    filled = scatter.gather(asked, lambda cell: _fill(chosen[cell.id], query.with_services))
    by_id = {row.uuid: row for rows, _ in filled.values() for row in rows}
    listed = Listed(down=[cell for cell in cells if cell.id in keys.down or cell.id in filled.down])
    listed.rows = [by_id[uuid] for uuid in chosen.order if uuid in by_id]
    for _, services in filled.values():
        listed.services.update({service.host: service for service in services})
    return listed


def _keys(query: Query, where: Q) -> list[KeyRow]:
    order = [F(c).desc(nulls_last=True) if down else F(c).asc(nulls_first=True) for c, down in query.sort]
    columns = [column for column, _ in query.sort]
    rows = Instance.objects.filter(where).order_by(*order).values_list(*columns)
    return list(rows[: query.limit])


class _Chosen(dict[str, list[str]]):
    """Ids by cell, and all of them in order."""

    order: list[str]


def _merge(answers: dict[str, list[KeyRow]], query: Query) -> _Chosen:
    """The first `limit` of all cells' keys. A server that is in two cells for a moment counts once."""
    everything = [(row, cell_id) for cell_id, rows in answers.items() for row in rows]
    for index in reversed(range(len(query.sort))):
        everything.sort(key=_nulls_low(index), reverse=query.sort[index][1])
    chosen = _Chosen()
    home: dict[str, str] = {}
    for row, cell_id in everything:
        if len(home) == query.limit:
            break
        home.setdefault(row[-1], cell_id)
    for uuid, cell_id in home.items():
        chosen.setdefault(cell_id, []).append(uuid)
    chosen.order = list(home)
    return chosen


def _nulls_low(index: int) -> Callable[[tuple[KeyRow, str]], tuple[bool, Any]]:
    return lambda item: (item[0][index] is not None, item[0][index])


def _fill(ids: Sequence[str], with_services: bool) -> tuple[list[ServerRow], list[Service]]:
    rows = server_rows.read(Instance.objects.filter(uuid__in=ids))
    hosts: Iterable[str] = {row.host for row in rows if row.host} if with_services else ()
    services = list(Service.objects.filter(binary="nova-compute", host__in=hosts)) if hosts else []
    return rows, services


def _after(query: Query, cells: list[Cell]) -> Q:
    """What comes after the marker in this order."""
    if not query.marker:
        return Q()
    mapping = InstanceMapping.objects.filter(pk=query.marker).first()
    cell = next((c for c in cells if mapping is not None and c.id == mapping.cell_id), None)
    if cell is None:
        raise BadRequest(f"marker [{query.marker}] not found")
    columns = [column for column, _ in query.sort]

    def read(_: Cell) -> KeyRow | None:
        return Instance.objects.filter(uuid=query.marker).values_list(*columns).first()

    values = scatter.one(cell, read)
    if values is None or isinstance(values, scatter.Down):
        raise BadRequest(f"marker [{query.marker}] not found")
    return _beyond(query.sort, values)


def _beyond(sort: list[SortKey], values: KeyRow) -> Q:
    """Rows strictly after `values`: later in the first key, or equal there and later in the second, …"""
    found, equal = Q(pk__in=[]), Q()
    for (column, descending), value in zip(sort, values, strict=True):
        found |= equal & _later(column, value, descending=descending)
        equal &= Q(**{f"{column}__isnull": True}) if value is None else Q(**{column: value})
    return found


def _later(column: str, value: Any, *, descending: bool) -> Q:
    if descending:  # nulls come last
        return Q(pk__in=[]) if value is None else Q(**{f"{column}__lt": value}) | Q(**{f"{column}__isnull": True})
    return Q(**{f"{column}__isnull": False}) if value is None else Q(**{f"{column}__gt": value})
