"""Servers as flat rows of text for the API: times and JSON as the database returns them.

A list of 1,000 servers has 40,000 values; converting each to a Python object and back to text would cost more than the
query. So times stay text (cut by position) and JSON columns go into the response as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from django.conf import settings
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet, TextField, Value
from django.db.models.functions import Cast

from cells.compiled_query import CompiledQuery
from cells.context import current_alias
from compute.models import Instance
from compute.servers import host_status


class ServerRow(NamedTuple):
    """The columns that a response needs. `*_json` and times are text, or None."""

    id: int | None
    uuid: str
    project_id: str
    user_id: str
    display_name: str
    description: str | None
    hostname: str
    host: str
    node: str
    availability_zone: str
    pinned_availability_zone: str
    vm_state: str
    task_state: str | None
    power_state: int
    progress: int
    locked_by: str
    locked_reason: str | None
    flavor_id: str
    image_id: str
    key_name: str | None
    user_data: str
    config_drive: bool
    tags: str
    access_ip_v4: str
    access_ip_v6: str
    disk_config: str
    reservation_id: str
    launch_index: int
    root_device_name: str
    deleted: bool
    flavor_json: str
    metadata_json: str
    addresses_json: str
    fault_json: str | None
    created_at: str
    updated_at: str
    launched_at: str | None
    terminated_at: str | None
    host_status: str | None  # None: the caller may not see it


class NameRow(NamedTuple):
    """The columns of a list without details."""

    uuid: str
    display_name: str


_TEXTS = {
    "flavor_json": "flavor", "metadata_json": "metadata", "addresses_json": "addresses", "fault_json": "fault",
    "created_at": "created_at", "updated_at": "updated_at", "launched_at": "launched_at",
    "terminated_at": "terminated_at",
}  # fmt: skip
_CASTS = {f"{name}_text": Cast(column, TextField()) for name, column in _TEXTS.items()}
_PLAIN = [name for name in ServerRow._fields if name not in _TEXTS and name != "host_status"]
_SELECTED = [*_PLAIN, *_CASTS]


def selected(found: QuerySet[Instance], *more: str, service_down_time: float | None) -> QuerySet[Instance, Any]:
    """Select additional columns, then those of a ServerRow; without `service_down_time` without a `host_status`."""
    hidden = Value(None, output_field=TextField())
    status = hidden if service_down_time is None else host_status.column(service_down_time)
    return found.annotate(**_CASTS, status_of_host=status).values_list(*more, *_SELECTED, "status_of_host")


@lru_cache(maxsize=8)
def _living(service_down_time: float | None) -> CompiledQuery:
    return CompiledQuery(
        lambda server_id: selected(Instance.objects.living(uuid=server_id), service_down_time=service_down_time),
        "server_id",
    )


def living(server_id: str, *, with_status: bool) -> ServerRow | None:
    """Return a server of the targeted cell that is not deleted; None: there is none. No value is converted."""
    query = _living(settings.SERVICE_DOWN_TIME if with_status else None)
    rows = query.unconverted(current_alias(), server_id=server_id)
    return ServerRow._make(rows[0]) if rows else None


def unconverted(rows: QuerySet[Any, Any]) -> list[tuple[Any, ...]]:
    """Return the rows as the database adapter returns them: on SQLite times are text and booleans numbers."""
    sql, parameters = compiled(rows)
    return fetched(rows.db, sql, parameters) if sql else []


def compiled(rows: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return SQL and parameters of a query; SQL "" when no row can pass its filter."""
    try:
        return rows.query.get_compiler(rows.db).as_sql()  # type: ignore[return-value]
    except EmptyResultSet:  # no row can pass the filter
        return "", ()


def fetched(alias: str, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement; return its rows as the database adapter returns them."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def of(instance: Instance, status: str | None = None) -> ServerRow:
    """Return the row of a server that is only in memory, with its `host_status`."""
    columns: dict[str, Any] = {name: getattr(instance, name) for name in _PLAIN}
    columns |= {name: _text(getattr(instance, column)) for name, column in _TEXTS.items()}
    return ServerRow(**columns, host_status=status)


def moment_text(value: datetime | str) -> str:
    """Return a time as text that sorts: `2026-11-20 21:30:50.264347`, from either database's text or a datetime."""
    if not isinstance(value, str):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if len(value) == 26 and "+" not in value:
        return value
    seconds, _, fraction = value.partition("+")[0].partition(".")  # PostgreSQL: 21:30:50.264+00
    return f"{seconds}.{fraction:0<6}"


def moment(value: datetime | str | None) -> datetime | None:
    """Return a time as a database adapter returns it, in UTC: SQLite's is text, or has no zone."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return moment_text(value)
    return orjson.dumps(value).decode()
