"""The compute services of hosts, for lists: the columns of `host_status`, by statements that are compiled once."""

from __future__ import annotations

from collections.abc import Collection
from itertools import cycle
from typing import Any

from django.db import connections

from compute.models import Service
from compute.servers import rows

COLUMNS = ("host", "disabled", "forced_down", "last_seen_up", "ended_at")
_PLACE = "a host of the list "  # stands for a host in the parameters of a statement
_statements: dict[tuple[str, int], tuple[str, tuple[Any, ...]]] = {}  # by database vendor and number of hosts


def of_hosts(alias: str, hosts: Collection[str]) -> list[Service]:
    """Return the services of hosts, with the columns above and the time of the database. One query."""
    if not hosts:
        return []
    sql, parameters = _statement(alias, 1 << (len(hosts) - 1).bit_length())
    named = cycle(hosts)  # a place that is left over repeats one
    filled = [next(named) if str(value).startswith(_PLACE) else value for value in parameters]
    return [_service(alias, values) for values in rows.fetched(alias, sql, filled)]


def _statement(alias: str, places: int) -> tuple[str, tuple[Any, ...]]:
    """Return the statement for a number of hosts. Compiling it takes as long as several such queries."""
    same = (connections[alias].vendor, places)
    if same not in _statements:
        found = Service.objects.using(alias).computes(host__in=[f"{_PLACE}{number}" for number in range(places)])
        _statements[same] = rows.compiled(found.values_list(*COLUMNS, "read_at"))
    return _statements[same]


def _service(alias: str, values: tuple[Any, ...]) -> Service:
    host, disabled, forced_down, *times = values
    seen, ended, read = (rows.moment(value) for value in times)
    found: Service = Service.from_db(alias, COLUMNS, (host, bool(disabled), bool(forced_down), seen, ended))
    if read is not None:
        found.read_at = read
    return found
