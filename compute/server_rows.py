"""A server as a flat row of text, ready to be shown: times and JSON as the database wrote them.

A list of 1,000 servers is 40,000 values; turning each into a Python object and back into text would cost
more than the query. So times stay text (cut by position) and JSON columns go into the answer as they are.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import orjson
from django.db import connections
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from compute.models import Instance


class ServerRow(NamedTuple):
    """The columns an answer needs. `*_json` and times are text, or None."""

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


_TEXTS = {
    "flavor_json": "flavor", "metadata_json": "metadata", "addresses_json": "addresses", "fault_json": "fault",
    "created_at": "created_at", "updated_at": "updated_at", "launched_at": "launched_at",
    "terminated_at": "terminated_at",
}  # fmt: skip
_CASTS = {f"{name}_text": Cast(column, TextField()) for name, column in _TEXTS.items()}
_PLAIN = [name for name in ServerRow._fields if name not in _TEXTS]
_SELECTED = [*_PLAIN, *_CASTS]


def read(rows: QuerySet[Instance]) -> list[ServerRow]:
    """Rows of the targeted cell, in one query. Past Django's converters: nothing here is to be converted."""
    query = rows.annotate(**_CASTS).values_list(*_SELECTED).query
    sql, parameters = query.get_compiler(rows.db).as_sql()
    with connections[rows.db].cursor() as cursor:
        cursor.execute(sql, parameters)
        return [ServerRow._make(values) for values in cursor.fetchall()]


def of(instance: Instance) -> ServerRow:
    """The row of a server that is in memory only (it is in no cell yet)."""
    columns: dict[str, Any] = {name: getattr(instance, name) for name in _PLAIN}
    columns |= {name: _text(getattr(instance, column)) for name, column in _TEXTS.items()}
    return ServerRow(**columns)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return orjson.dumps(value).decode()
