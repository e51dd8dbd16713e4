"""Paging of lists: `limit`, `marker` and the `next` link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from rest_framework.request import Request

from cloud.errors import BadRequest
from compute.api.base import link
from compute.errors import InvalidInput


class UnknownMarker(BadRequest):
    """The marker names no record."""

    def __init__(self, marker: str) -> None:
        super().__init__(f"marker [{marker}] not found")


def limit_of(request: Request) -> int:
    """Return the page size: `limit`, at most MAX_LIMIT. Raises InvalidInput."""
    raw = request.query_params.get("limit")
    if raw is None:
        return int(settings.MAX_LIMIT)
    if not raw.isascii() or not raw.isdigit():
        raise InvalidInput(f"Invalid input for query parameters limit. Value: {raw}. '{raw}' does not match '^[0-9]*$'")
    most = int(settings.MAX_LIMIT)
    return min(int(raw), most) if len(raw) < 10 else most


def page(items: Sequence[Any], request: Request, key: str) -> list[Any]:
    """Return a page of a list in memory, in its order. `key` is the attribute a marker names.

    Raises UnknownMarker, InvalidInput.
    """
    limit, marker = limit_of(request), request.query_params.get("marker")
    start = 0
    if marker:
        keys = [str(getattr(item, key)) for item in items]
        if marker not in keys:
            raise UnknownMarker(marker)
        start = keys.index(marker) + 1
    return list(items[start : start + limit])


def next_link(request: Request, path: str, shown: int, last: str) -> list[dict[str, str]]:
    """Return the `next` link when the page is full, else nothing."""
    limit = limit_of(request)
    if not shown or shown < limit:
        return []
    # sorted by name; repeated parameters, such as sort_key, keep their order
    query = [(k, v) for k, vs in sorted(request.query_params.lists()) for v in vs if k != "marker"]
    return [{"rel": "next", "href": f"{link(path)}?{urlencode([*query, ('marker', last)])}"}]
