"""The order of a list of servers: ORDER BY in each cell, and the same order in Python where the rows are merged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from django.db.models import CharField, DateTimeField, Expression, F, Field, Func, OrderBy, Q, TextField, Value
from django.db.models.lookups import GreaterThan, LessThan

from compute.models import Instance
from compute.servers import rows as servers_rows

SortKey = tuple[str, bool]  # column, descending
KeyRow = tuple[Any, ...]  # the sort columns' values, uuid last


class ByCodepoint(Func):
    """Text ordered as in Python, whatever the collation of the database."""

    template = "%(expressions)s"
    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Only PostgreSQL needs this: SQLite compares by code point."""
        return super().as_sql(compiler, connection, template='(%(expressions)s) COLLATE "C"', **context)


def _comparable(column: str) -> Expression | F:
    is_text = isinstance(Instance._meta.get_field(column), CharField | TextField)
    # A uuid is hexadecimal: every collation agrees, and the bare column can use its index.
    return ByCodepoint(F(column)) if is_text and column != "uuid" else F(column)


def ordered(column: str, *, descending: bool) -> OrderBy:
    """Return the ORDER BY of a column, nulls lowest.

    Stating that for a column without nulls would keep PostgreSQL from using the index.
    """
    nullable = Instance._meta.get_field(column).null or None
    if descending:
        return OrderBy(_comparable(column), descending=True, nulls_last=nullable)
    return OrderBy(_comparable(column), nulls_first=nullable)


def is_time(column: str) -> bool:
    """Whether a column of servers has times."""
    return isinstance(Instance._meta.get_field(column), DateTimeField)


def with_times_as_text(rows: list[KeyRow], sort: list[SortKey]) -> list[KeyRow]:
    """Return the rows with their times as text that sorts in Python."""
    for index, (column, _) in enumerate(sort):
        if is_time(column):
            text = servers_rows.moment_text
            rows = [(*row[:index], row[index] and text(row[index]), *row[index + 1 :]) for row in rows]
    return rows


def with_moments(row: KeyRow, sort: list[SortKey]) -> KeyRow:
    """Return the row with times: the inverse of `with_times_as_text()`."""
    return tuple(
        moment(value) if value is not None and is_time(column) else value
        for (column, _), value in zip(sort, row, strict=True)
    )


def moment(text: str) -> datetime:
    """Return the time of a text that `with_times_as_text()` made."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def beyond(sort: list[SortKey], values: KeyRow) -> Q:
    """Return the filter for rows strictly after `values`.

    They are later in the first key, or equal there and later in the second, and so on.
    """
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
