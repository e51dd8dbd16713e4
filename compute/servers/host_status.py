"""The `host_status` of servers (Compute API reference), worked out by the database of their cell.

A column of the server's row, so that a list asks each cell once, and asks nothing else when the caller may not see it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db.models import Case, CharField, Expression, F, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Coalesce

from cells import database_clock
from cells.compiled_query import CompiledQuery
from compute.models import Service

UNKNOWN = "UNKNOWN"


def column(service_down_time: float) -> Expression:
    """Return the column for a query of servers: UP, DOWN, MAINTENANCE, UNKNOWN, or "" for a server without a host."""
    of_host = _of_computes(service_down_time).filter(host=OuterRef("host")).values("status")[:1]
    found = Coalesce(Subquery(of_host, output_field=TextField()), Value(UNKNOWN), output_field=TextField())
    return Case(When(host="", then=Value("")), default=found, output_field=TextField())


def of_host(alias: str, host: str) -> str:
    """Return the status of one host. One query."""
    if not host:
        return ""
    rows = _query(settings.SERVICE_DOWN_TIME).rows(alias, host=host)
    return rows[0][0] if rows else UNKNOWN


@lru_cache(maxsize=8)
def _query(service_down_time: float) -> CompiledQuery:
    return CompiledQuery(lambda host: _of_computes(service_down_time).filter(host=host).values_list("status"), "host")


def _of_computes(service_down_time: float) -> QuerySet[Any, Any]:
    """Return the compute services with their `status`: the rule of `Service.is_up` as SQL."""
    seen = Coalesce(F("last_seen_up"), F("created_at"))
    beats = Q(ended_at__isnull=True) & database_clock.is_recent("seen", service_down_time)
    status = Case(
        When(forced_down=True, then=Value("DOWN")), When(disabled=True, then=Value("MAINTENANCE")),
        When(beats, then=Value("UP")), default=Value(UNKNOWN), output_field=CharField(),
    )  # fmt: skip
    return Service.objects.computes().order_by().alias(seen=seen).annotate(status=status)
