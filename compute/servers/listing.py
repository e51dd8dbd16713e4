"""Lists of servers over cells: each cell returns about its share of the page, then the shares are merged.

The mappings name the cells that are asked (`owners.py`). A cell whose rows are all on the page is asked for twice as
many after them, until it has no more or the page is full without it. So a page costs one query for each cell that has
a part of it, independent of the number of servers. Servers without a cell are merged in like one more cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.conf import settings

from cells import cell_records, circuit_breaker, scatter
from cells.context import current_alias
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.errors import BadRequest
from compute.errors import CellDown, PartialList
from compute.models import Instance
from compute.servers import create, list_order, list_query, owners, pending
from compute.servers import rows as servers_rows
from compute.servers.list_order import KeyRow
from compute.servers.list_query import Query

_Place = tuple[KeyRow, str, int]  # sort values, cell id, index among the cell's rows
NO_CELL = ""
MORE, MARGIN = 0.25, 8  # added to an even share of the page, as servers are never spread that evenly
MOST_MAPPINGS = 10_000  # read at once


@dataclass(slots=True)
class ListedServers:
    """A page of servers. `down` are the cells that did not answer."""

    servers: list[Any] = field(default_factory=list)  # as shown
    last: str = ""  # id of the last server
    down: list[Cell] = field(default_factory=list)


@dataclass(slots=True)
class _CellPart:
    """What one cell has returned so far, in order."""

    keys: list[KeyRow] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)  # of the first rows: those shown while other cells were awaited
    ended: bool = False  # the cell has no more rows

    def add(self, other: _CellPart) -> None:
        """Append the next rows."""
        if len(self.shown) == len(self.rows):
            self.shown += other.shown
        self.keys += other.keys
        self.rows += other.rows
        self.ended = other.ended

    def show(self, query: Query) -> None:
        """Show all rows while other cells are awaited, before it is known which are on the page."""
        self.shown = [query.show(row) for row in self.rows]


@dataclass(frozen=True, slots=True)
class _Marker:
    """The server after which the page begins."""

    values: KeyRow  # of the sort columns
    place: owners.Place  # among the mappings


@dataclass(slots=True)
class _Search:
    """A page that comes together: which cells were asked, what each returned, which are down."""

    query: Query
    cells: list[Cell]
    newest: owners.NewestFirst | None  # None: another order or filter
    parts: dict[str, _CellPart]
    down: set[str] = field(default_factory=set)
    page: dict[str, _Place] = field(default_factory=dict)
    rounds: int = 0  # of reading mappings

    def first(self) -> tuple[list[Cell], int]:
        """Return the cells to ask first, and for how many rows."""
        self.page = _merge(self.parts, self.query)
        if self.newest is None:
            asked = owners.cells_with_servers(self.cells, self.query.project_id)
            return asked, MARGIN + int(self.query.limit / max(1, len(asked)) * (1 + MORE))
        # one that no mapping names is not asked, and is down all the same
        self.down = {cell.id for cell in self.cells if circuit_breaker.known_down(cell.id)}
        return self._named(self.newest)

    def ask(self, asked: list[Cell], count: int) -> None:
        """Ask cells for their next rows, and merge them in."""
        for cell in asked:
            self.parts.setdefault(cell.id, _CellPart())
        count = min(count, self.query.limit)
        read = lambda cell: _read(self.query, self.parts[cell.id].keys, count)  # noqa: E731
        found = scatter.gather(asked, read, meanwhile=partial(_show, self.query))
        for cell_id, part in found.answers.items():
            self.parts[cell_id].add(part)
        for cell_id in found.down:  # drop its earlier rows: its servers are listed as UNKNOWN
            self.down.add(cell_id)
            del self.parts[cell_id]
        self.page = _merge(self.parts, self.query)

    def next(self, count: int) -> tuple[list[Cell], int]:
        """Return the cells to ask after some were asked for `count` rows each; none when the page is complete."""
        asked, limit = [cell for cell in self.cells if cell.id in self.parts], self.query.limit
        if self.newest is None:
            return [cell for cell in asked if _may_have_more(self.parts[cell.id], self.page, limit)], 2 * count
        again = [cell for cell in asked if _goes_on(self.parts[cell.id], self.page)]  # rows that no mapping names
        return (again, count) if again else self._named(self.newest)

    def _named(self, newest: owners.NewestFirst) -> tuple[list[Cell], int]:
        """Return the cells that further mappings name, until these cover the page."""
        while not self._is_covered(newest):
            missing = self.query.limit - len(self.page)
            if missing:
                counts = newest.next(min(missing << self.rounds, MOST_MAPPINGS), self.down)
                self.rounds += 1
            else:
                ((created_at, server_id), _, _) = next(reversed(self.page.values()))
                counts = newest.up_to((list_order.moment(created_at), server_id), self.down)
            asked = [cell for cell in self.cells if cell.id in counts and self._is_behind(cell.id, newest)]
            if asked:
                # One more than it has there: its last row then shows that there are no others. And its share of what
                # the page lacks when one of them does not answer: after the deadline no cell is to be asked again.
                most = max(counts[cell.id] for cell in asked)
                return asked, 1 + most + math.ceil(most / max(1, len(asked) - 1))
        return [], 0

    def _is_behind(self, cell_id: str, newest: owners.NewestFirst) -> bool:
        """Whether a cell has not returned its rows up to the last mapping that was read."""
        part = self.parts.get(cell_id)
        return part is None or (not part.ended and newest.reach(*part.keys[-1]))

    def _is_covered(self, newest: owners.NewestFirst) -> bool:
        if newest.are_all_read:
            return True
        if len(self.page) < self.query.limit:
            return False
        ((created_at, server_id), _, _) = next(reversed(self.page.values()))
        return newest.reach(created_at, server_id)


def servers(query: Query) -> ListedServers:
    """Return a page of servers, merged over the cells that answer. Raises BadRequest (unknown marker), CellDown."""
    if query.limit == 0:
        return ListedServers()
    cells = cell_records.every()
    marker = _marker(query, cells)
    query.after = marker.values if marker else None
    waiting = _waiting(query)  # read before the cells, so that a server that is just being placed is not missed
    newest = owners.NewestFirst(query.project_id, marker.place if marker else None) if query.newest_first else None
    search = _Search(query, cells, newest, {NO_CELL: waiting})
    asked, count = search.first()
    while asked:
        search.ask(asked, count)
        asked, count = search.next(count)
    shown = [_shown(query, search.parts[cell_id], index) for _, cell_id, index in search.page.values()]
    return ListedServers(shown, next(reversed(search.page), ""), [cell for cell in cells if cell.id in search.down])


def _show(query: Query, parts: Iterable[_CellPart]) -> None:
    for part in parts:
        part.show(query)


def _shown(query: Query, part: _CellPart, index: int) -> Any:
    if index < len(part.shown):
        return part.shown[index]
    row = part.rows[index]
    return query.show(servers_rows.of(create.unplaced(row), "") if isinstance(row, BuildRequest) else row)


def check_partial_list_allowed(down: Iterable[Cell], project_id: str = "") -> None:
    """Check whether down cells may be left out of a list of a project (empty: of all projects).

    Raises PartialList when the operator forbids partial lists and the project may have servers there (Nova: `[api]
    list_records_by_skipping_down_cells`).
    """
    if settings.LIST_RECORDS_BY_SKIPPING_DOWN_CELLS:
        return
    owner = {"servers__project_id": project_id} if project_id else {"servers__isnull": False}
    names = set(Cell.objects.filter(pk__in=[cell.pk for cell in down], **owner).values_list("name", flat=True))
    if names:
        raise PartialList(names)


def _waiting(query: Query) -> _CellPart:
    """The servers that are in no cell yet."""
    if not pending.any_there():
        return _CellPart(ended=True)
    requests = list(list_query.page(pending.servers(), query)[: query.limit])
    keys = [tuple(getattr(request, column) for column in query.columns) for request in requests]
    return _CellPart(list_order.with_times_as_text(keys, query.sort), requests, ended=True)


def _read(query: Query, before: Sequence[KeyRow], count: int) -> _CellPart:
    """Read `count` rows of the targeted cell after those it returned before."""
    keys, rows = list_query.read(query, current_alias(), before, count)
    return _CellPart(keys, rows, ended=len(rows) < count)


def _merge(parts: Mapping[str, _CellPart], query: Query) -> dict[str, _Place]:
    """The first `limit` rows of all, by uuid, in order. A server found twice (it is just being placed) counts once."""
    ordered = sorted(parts, key=lambda cell_id: cell_id == NO_CELL)  # a row in a cell counts before its build request
    everything = [(key, cell_id, index) for cell_id in ordered for index, key in enumerate(parts[cell_id].keys)]
    for index in reversed(range(len(query.sort))):
        column, descending = query.sort[index]
        nullable = Instance._meta.get_field(column).null
        everything.sort(key=_nulls_low(index) if nullable else _value(index), reverse=descending)
    page: dict[str, _Place] = {}
    for place in everything:
        if len(page) == query.limit:
            break
        page.setdefault(place[0][-1], place)
    return page


def _may_have_more(part: _CellPart, page: dict[str, _Place], limit: int) -> bool:
    """Whether rows not yet returned by the cell may belong to the page."""
    return not part.ended and (len(page) < limit or _goes_on(part, page))


def _goes_on(part: _CellPart, page: dict[str, _Place]) -> bool:
    """Whether the cell may have more rows before the last one of the page."""
    return not part.ended and part.keys[-1][-1] in page and part.keys[-1][-1] != next(reversed(page))


def _value(index: int) -> Callable[[_Place], Any]:
    return lambda item: item[0][index]


def _nulls_low(index: int) -> Callable[[_Place], tuple[bool, Any]]:
    return lambda item: (item[0][index] is not None, item[0][index])


def _marker(query: Query, cells: list[Cell]) -> _Marker | None:
    """Return the marker; None when the page is the first. Raises BadRequest, CellDown."""
    if not query.marker:
        return None
    mapping = InstanceMapping.objects.filter(pk=query.marker).first()
    values = None
    if mapping is not None and query.marker_project in ("", mapping.project_id):
        values = _marked(query, next((c for c in cells if c.id == mapping.cell_id), None))
    if mapping is None or values is None:
        raise BadRequest(f"marker [{query.marker}] not found")
    return _Marker(values, (mapping.created_at, mapping.server_id))


def _marked(query: Query, cell: Cell | None) -> KeyRow | None:
    """The marker's sort values, from its cell or its build request. Raises CellDown."""
    found: list[KeyRow] = []
    if cell is not None:
        answer = scatter.ask_one(cell, lambda _: list_query.keys(Instance.objects.filter(uuid=query.marker), query))
        if isinstance(answer, scatter.CellFailure):
            raise CellDown(cell.name)
        found = answer
    found = found or list_query.keys(pending.servers().filter(pk=query.marker), query)
    return found[0] if found else None
