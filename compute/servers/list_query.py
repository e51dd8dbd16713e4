"""A list request, and its part of the page in one cell: the SQL, compiled once for many cells or for many requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import F, Q, QuerySet, TextField
from django.db.models.functions import Cast

from cells.compiled_query import CompiledQuery
from compute import state
from compute.models import Instance
from compute.servers import list_order, rows
from compute.servers.list_order import KeyRow, SortKey

# not deleted=…: SQLite uses no index for a bare `NOT deleted`
LIVING = Q(deleted__in=[False]) & ~Q(vm_state=state.VmState.SOFT_DELETED)
NEWEST_FIRST: list[SortKey] = [("created_at", True), ("uuid", False)]


@dataclass(slots=True)
class Query:
    """A list request: filter, order, limit, marker, and how one server is shown."""

    where: Q
    sort: list[SortKey]
    limit: int
    show: Callable[[Any], Any]  # a ServerRow; a NameRow where names are enough
    names_only: bool = False
    with_status: bool = False  # with the `host_status` of each server
    marker: str = ""
    marker_project: str = ""  # the project that must own the marker's server; "": any
    project_id: str | None = None  # whose servers `where` lets through; None: those of all projects
    newest_first: bool = False  # living servers in the default order, without a filter
    after: KeyRow | None = None  # sort values of the marker, times as text
    compiled: dict[Any, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)  # SQL of this request

    @property
    def service_down_time(self) -> float | None:
        """Seconds without a heartbeat after which a host's status is UNKNOWN; None: the status is not listed."""
        return settings.SERVICE_DOWN_TIME if self.with_status else None

    @property
    def columns(self) -> list[str]:
        """The sort columns; uuid is the last."""
        return [column for column, _ in self.sort]


def page(found: QuerySet[Any], query: Query) -> QuerySet[Any]:
    """Return the servers that the request lists, in order: instances, or build requests with their columns."""
    after = query.after and list_order.with_moments(query.after, query.sort)
    return _in_order(found.filter(query.where), query.sort, after)


def keys(found: QuerySet[Any], query: Query) -> list[KeyRow]:
    """Return the sort values of servers."""
    return list_order.with_times_as_text(list(found.values_list(*query.columns)), query.sort)


def read(query: Query, alias: str, before: Sequence[KeyRow], count: int) -> tuple[list[KeyRow], list[Any]]:
    """Return the sort values and the rows of `count` servers of a cell, after those it returned before."""
    last = before[-1] if before else query.after
    found = _newest(query, alias, last, count) if query.newest_first else _others(query, alias, last, count)
    width = len(query.sort)
    make = rows.NameRow._make if query.names_only else rows.ServerRow._make
    sort_values = list_order.with_times_as_text([values[:width] for values in found], query.sort)
    return sort_values, [make(values[width:]) for values in found]


def _newest(query: Query, alias: str, last: KeyRow | None, count: int) -> list[tuple[Any, ...]]:
    given: dict[str, Any] = {} if query.project_id is None else {"project_id": query.project_id}
    if last is not None:
        given |= {"created_at": list_order.moment(last[0]), "uuid": last[1]}
    compiled = _newest_query(frozenset(given), count, query.names_only, query.service_down_time)
    return compiled.unconverted(alias, **given)


@lru_cache(maxsize=1024)
def _newest_query(
    given: frozenset[str], count: int, names_only: bool, service_down_time: float | None
) -> CompiledQuery:
    """Return the query for the newest living servers: of a project, or after one, if these are given."""

    def build(created_at: Any = None, uuid: str = "", **project: str) -> QuerySet[Any, Any]:
        found = Instance.objects.filter(LIVING, **project)
        after = (created_at, uuid) if created_at else None
        page = _in_order(found, NEWEST_FIRST, after)[:count]
        return _selected(page, NEWEST_FIRST, service_down_time, names_only=names_only)

    return CompiledQuery(build, *(given - {"created_at"}), times=("created_at",) if "created_at" in given else ())


def _others(query: Query, alias: str, last: KeyRow | None, count: int) -> list[tuple[Any, ...]]:
    same = (connections[alias].vendor, last, count)
    if same not in query.compiled:
        after = last and list_order.with_moments(last, query.sort)
        found = _in_order(Instance.objects.using(alias).filter(query.where), query.sort, after)[:count]
        selected = _selected(found, query.sort, query.service_down_time, names_only=query.names_only)
        query.compiled[same] = rows.compiled(selected)
    sql, parameters = query.compiled[same]
    return rows.fetched(alias, sql, parameters) if sql else []


def _in_order(found: QuerySet[Any], sort: list[SortKey], after: KeyRow | None) -> QuerySet[Any]:
    order = [list_order.ordered(column, descending=descending) for column, descending in sort]
    return (found.filter(list_order.beyond(sort, after)) if after else found).order_by(*order)


def _selected(
    found: QuerySet[Any], sort: list[SortKey], service_down_time: float | None, *, names_only: bool
) -> QuerySet[Any, Any]:
    """Select the sort columns, then those of a NameRow or ServerRow."""
    # Times as text: converting each to a datetime would cost more than the query.
    keys = {f"key_{column}": Cast(F(column), TextField()) if list_order.is_time(column) else F(column)
            for column, _ in sort}  # fmt: skip
    keyed = found.annotate(**keys)
    if names_only:
        return keyed.values_list(*keys, *rows.NameRow._fields)
    return rows.selected(keyed, *keys, service_down_time=service_down_time)
