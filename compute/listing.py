"""Lists of servers over all cells: each cell gives the keys of a page, the merge decides, each cell fills in.

Two queries per cell whatever the number of servers (three with the hosts' services), and never more than a
page of keys per cell. Servers no cell has yet are merged in like those of one more cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.conf import settings
from django.db.models import (
    CharField,
    DateTimeField,
    Expression,
    F,
    Field,
    Func,
    OrderBy,
    Q,
    QuerySet,
    TextField,
    Value,
)
from django.db.models.functions import Cast
from django.db.models.lookups import GreaterThan, LessThan

from cells import scatter
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.errors import BadRequest
from compute import boot, server_rows, unplaced
from compute.errors import CellDown, PartialList
from compute.models import Instance, Service
from compute.server_rows import ServerRow

SortKey = tuple[str, bool]  # column, descending
KeyRow = tuple[Any, ...]  # the sort columns' values, uuid last
NO_CELL = ""
_OF_A_SERVICE = ("host", "disabled", "forced_down", "last_seen_up", "ended_at")


@dataclass(slots=True)
class Query:
    """Which servers, in which order, how many, after which."""

    where: Q
    sort: list[SortKey]
    limit: int
    marker: str = ""
    marker_project: str = ""  # whose server the marker has to be; "" = anybody's
    with_services: bool = False


@dataclass(slots=True)
class Listed:
    """What was found. `down` are the cells that did not answer."""

    ids: list[str] = field(default_factory=list)  # the page; rows of a cell that went away since are missing
    rows: list[ServerRow] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)
    down: list[Cell] = field(default_factory=list)


def servers(query: Query) -> Listed:
    """A page of servers, merged over the cells that answer. Raises BadRequest for an unknown marker, CellDown."""
    cells = list(Cell.objects.all())
    if query.limit == 0:
        return Listed()
    where = query.where & _after(query, cells)
    waiting = _waiting(query, where)  # before the cells: a server that is just placed is not missed
    keys = scatter.gather(cells, lambda cell: _comparable_keys(_page(Instance.objects.all(), query, where), query))
    columns = [column for column, _ in query.sort]
    keys.answers[NO_CELL] = _with_times_as_text(
        [tuple(getattr(r, c) for c in columns) for r in waiting.values()], query
    )
    chosen = _merge(keys.answers, query)
    asked = [cell for cell in cells if cell.id in chosen]
    filled = scatter.gather(asked, lambda cell: _fill(chosen[cell.id], query.with_services))
    by_id = {row.uuid: row for rows, _ in filled.values() for row in rows}
    by_id |= {uuid: server_rows.of(boot.unplaced(waiting[uuid])) for uuid in chosen.get(NO_CELL, ())}
    listed = Listed(chosen.order, down=[cell for cell in cells if cell.id in keys.down or cell.id in filled.down])
    listed.rows = [by_id[uuid] for uuid in chosen.order if uuid in by_id]
    for _, services in filled.values():
        listed.services.update({service.host: service for service in services})
    return listed


def skip(down: Iterable[Cell], project_id: str = "") -> None:
    """Before cells that are down are left out of a list of a project ("": of all).

    Raises PartialList when the operator wants no such lists, and something of the project may be there.
    """
    if settings.LIST_RECORDS_BY_SKIPPING_DOWN_CELLS:
        return
    owner = {"servers__project_id": project_id} if project_id else {"servers__isnull": False}
    names = set(Cell.objects.filter(pk__in=[cell.pk for cell in down], **owner).values_list("name", flat=True))
    if names:
        raise PartialList(names)


def _waiting(query: Query, where: Q) -> dict[str, BuildRequest]:
    if not unplaced.any_there():
        return {}
    return {request.server_id: request for request in _page(unplaced.servers(), query, where)}


class ByCodepoint(Func):
    """Text in the order Python has for it, whatever the collation of the database."""

    template = "%(expressions)s"
    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """SQLite compares so anyway."""
        return super().as_sql(compiler, connection, template='(%(expressions)s) COLLATE "C"', **context)


def _comparable(column: str) -> Expression | F:
    is_text = isinstance(Instance._meta.get_field(column), CharField | TextField)
    # a uuid is hexadecimal: every collation agrees, and the bare column can use its index
    return ByCodepoint(F(column)) if is_text and column != "uuid" else F(column)


def _page(rows: QuerySet[Any], query: Query, where: Q) -> QuerySet[Any]:
    order = [_ordered(column, descending=descending) for column, descending in query.sort]
    return rows.filter(where).order_by(*order)[: query.limit]


def _ordered(column: str, *, descending: bool) -> OrderBy:
    """Nulls are lowest. Saying so for a column without nulls would keep PostgreSQL from its index."""
    nullable = Instance._meta.get_field(column).null or None
    if descending:
        return OrderBy(_comparable(column), descending=True, nulls_last=nullable)
    return OrderBy(_comparable(column), nulls_first=nullable)


def _keys(page: QuerySet[Any], query: Query) -> list[KeyRow]:
    return list(page.values_list(*[column for column, _ in query.sort]))


def _comparable_keys(page: QuerySet[Any], query: Query) -> list[KeyRow]:
    """As `_keys`, for the merge: with times as text, for a datetime of each would cost more than the query."""
    columns = [Cast(F(column), TextField()) if _is_time(column) else column for column, _ in query.sort]
    return _with_times_as_text(server_rows.unconverted(page.values_list(*columns)), query)


def _is_time(column: str) -> bool:
    return isinstance(Instance._meta.get_field(column), DateTimeField)


def _with_times_as_text(rows: list[KeyRow], query: Query) -> list[KeyRow]:
    for index, (column, _) in enumerate(query.sort):
        if _is_time(column):
            text = server_rows.moment_text
            rows = [(*row[:index], row[index] and text(row[index]), *row[index + 1 :]) for row in rows]
    return rows


class _Chosen(dict[str, list[str]]):
    """Ids by cell, and all of them in order."""

    order: list[str]


def _merge(answers: dict[str, list[KeyRow]], query: Query) -> _Chosen:
    """The first `limit` of all cells' keys. A server that is in two places for a moment counts once."""
    everything = [(row, cell_id) for cell_id, rows in answers.items() for row in rows]
    for index in reversed(range(len(query.sort))):
        column, descending = query.sort[index]
        nullable = Instance._meta.get_field(column).null
        everything.sort(key=_nulls_low(index) if nullable else _value(index), reverse=descending)
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


def _value(index: int) -> Callable[[tuple[KeyRow, str]], Any]:
    return lambda item: item[0][index]


def _nulls_low(index: int) -> Callable[[tuple[KeyRow, str]], tuple[bool, Any]]:
    return lambda item: (item[0][index] is not None, item[0][index])


def _fill(ids: Sequence[str], with_services: bool) -> tuple[list[ServerRow], list[Service]]:
    rows = server_rows.read(Instance.objects.filter(uuid__in=server_rows.OneOf(ids)))
    hosts: Iterable[str] = {row.host for row in rows if row.host} if with_services else ()
    found = Service.objects.filter(binary="nova-compute", host__in=hosts).only(*_OF_A_SERVICE)
    return rows, list(found) if hosts else []


def _after(query: Query, cells: list[Cell]) -> Q:
    """What comes after the marker in this order."""
    if not query.marker:
        return Q()
    mapping = InstanceMapping.objects.filter(pk=query.marker).first()
    values = None
    if mapping is not None and query.marker_project in ("", mapping.project_id):
        values = _marked(query, next((c for c in cells if c.id == mapping.cell_id), None))
    if values is None:
        raise BadRequest(f"marker [{query.marker}] not found")
    return _beyond(query.sort, values)


def _marked(query: Query, cell: Cell | None) -> KeyRow | None:
    """The marker's own sort values, from its cell or from where it waits for one. Raises CellDown."""
    found: list[KeyRow] = []
    if cell is not None:
        answer = scatter.one(cell, lambda _: _keys(Instance.objects.filter(uuid=query.marker), query))
        if isinstance(answer, scatter.Down):
            raise CellDown(cell.name)
        found = answer
    found = found or _keys(unplaced.servers().filter(pk=query.marker), query)
    return found[0] if found else None


def _beyond(sort: list[SortKey], values: KeyRow) -> Q:
    """Rows strictly after `values`: later in the first key, or equal there and later in the second, …"""
    found, equal = Q(pk__in=[]), Q()
    for (column, descending), value in zip(sort, values, strict=True):
        found |= equal & _later(column, value, descending=descending)
        equal &= Q(**{f"{column}__isnull": True}) if value is None else Q(**{column: value})
    return found


def _later(column: str, value: Any, *, descending: bool) -> Q:
    if value is None:  # nulls are lowest
        return Q(pk__in=[]) if descending else Q(**{f"{column}__isnull": False})
    own = cast("Field[Any, Any]", Instance._meta.get_field(column))
    told = Value(value, output_field=own)
    if not descending:
        return Q(GreaterThan(_comparable(column), told))
    lower = Q(LessThan(_comparable(column), told))
    return lower | Q(**{f"{column}__isnull": True}) if own.null else lower
