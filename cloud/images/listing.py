"""GET /v2/images: filters, order and paging."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.models import F, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, StrIndex
from django.http import QueryDict

from cloud import errors
from cloud.api_base import is_true
from cloud.caller import Caller
from cloud.images.models import Image, Visibility

_EQUAL = frozenset({"id", "name", "status", "owner", "disk_format", "container_format", "checksum"})
_BOUNDS = {
    f"{column}_{end}": f"{column}__{lookup}"
    for column in ("size", "min_ram", "min_disk")
    for end, lookup in (("min", "gte"), ("max", "lte"))
}
_NUMBERS = frozenset({"size", "min_ram", "min_disk"})
_YES_NO = frozenset({"protected", "os_hidden"})
_TIMES = frozenset({"created_at", "updated_at"})
_TIME_WORDS = {"gt": "gt", "gte": "gte", "lt": "lt", "lte": "lte", "eq": "exact"}
_PAGING = frozenset({"limit", "marker", "sort", "sort_key", "sort_dir", "member_status"})
_SORTABLE = frozenset({"name", "status", "container_format", "disk_format", "size", "id", "created_at", "updated_at"})


def filtered(images: QuerySet[Image], query: QueryDict, caller: Caller) -> QuerySet[Image]:
    """Return the images that the query's filters leave. Unknown keys are properties. Raises BadRequest."""
    visibility = query.get("visibility")
    if visibility is None and not caller.is_admin:
        # Community images of other projects are listed only with ?visibility=.
        images = images.filter(~Q(visibility=Visibility.COMMUNITY) | Q(owner=caller.project_id))
    elif visibility not in (None, "all"):
        if visibility not in Visibility.values:
            raise errors.BadRequest(f"Invalid visibility value: {visibility}")
        images = images.filter(visibility=visibility)
    if "os_hidden" not in query:
        images = images.filter(os_hidden=False)
    for key in query:
        if key not in _PAGING and key != "visibility":
            images = _filtered(images, key, query.getlist(key))
    return images


def order(query: QueryDict) -> list[tuple[str, bool]]:
    """Return the columns, each with whether it descends; the last one is unique. Raises BadRequest."""
    if query.get("sort"):
        pairs = [pair.partition(":")[::2] for pair in str(query["sort"]).split(",")]
    else:
        directions = query.getlist("sort_dir")
        keys = query.getlist("sort_key") or ["created_at"]
        pairs = [(key, _direction(directions, place)) for place, key in enumerate(keys)]
    columns: list[tuple[str, bool]] = []
    for key, direction in pairs:
        if key not in _SORTABLE or direction not in ("", "asc", "desc"):
            raise errors.BadRequest(f"Invalid sort key or direction: {key}:{direction}")
        if key not in {column for column, _ in columns}:
            columns.append((key, direction != "asc"))
    if "id" not in {column for column, _ in columns}:
        columns.append(("id", columns[-1][1]))
    return columns


def ordered(images: QuerySet[Image], columns: list[tuple[str, bool]], marker: Image | None) -> QuerySet[Image]:
    """Return the images in order, only those after the marker."""
    images = images.alias(sort_size=Coalesce(F("size"), -1))  # databases disagree on where NULL sorts
    names = [("sort_size" if column == "size" else column, down) for column, down in columns]
    if marker is not None:
        after, equal = Q(), Q()
        for name, down in names:
            value = _value(marker, name)
            after |= equal & Q(**{f"{name}__{'lt' if down else 'gt'}": value})
            equal &= Q(**{name: value})
        images = images.filter(after)
    return images.order_by(*(f"-{name}" if down else name for name, down in names))


def _filtered(images: QuerySet[Image], key: str, values: list[str]) -> QuerySet[Image]:
    value = values[-1]
    if key == "tag":
        for tag in values:
            images = _tagged(images, tag)
        return images
    if key in _EQUAL:
        several = value.startswith("in:")
        return images.filter(**{f"{key}__in": _words(value[3:]) if several else [value]})
    if key in _BOUNDS or key in _NUMBERS:
        return images.filter(**{_BOUNDS.get(key, key): _number(key, value)})
    if key in _YES_NO:
        return images.filter(**{key: is_true(value)})
    if key in _TIMES:
        return images.filter(**_moment(key, value))
    return images.alias(wanted=Cast(KeyTextTransform(key, "properties"), TextField())).filter(wanted=value)


def _tagged(images: QuerySet[Image], tag: str) -> QuerySet[Image]:
    """Filter by the JSON text of the tag, quotes included: SQLite has no containment for JSON."""
    text = json.dumps(tag, ensure_ascii=connection.vendor == "sqlite")
    place = StrIndex(Cast("tags", TextField()), Value(text))
    return images.alias(place=place).filter(place__gt=0)


def _direction(directions: list[str], place: int) -> str:
    if not directions:
        return "desc"
    return directions[place] if place < len(directions) else directions[0]


def _words(raw: str) -> list[str]:
    return next(csv.reader([raw]), [])


def _number(key: str, raw: str) -> int:
    if not (raw.isascii() and raw.isdigit() and len(raw) < 19):
        raise errors.BadRequest(f"Invalid value for {key}: not a non-negative integer.")
    return int(raw)


def _moment(key: str, raw: str) -> dict[str, Any]:
    word, _, rest = raw.partition(":")
    if word not in _TIME_WORDS:
        word, rest = "eq", raw
    try:
        moment = datetime.fromisoformat(rest)
    except ValueError as exc:
        raise errors.BadRequest(f"Invalid value for {key}: not a time.") from exc
    return {f"{key}__{_TIME_WORDS[word]}": moment if moment.tzinfo else moment.replace(tzinfo=UTC)}


def _value(marker: Image, name: str) -> Any:
    if name == "sort_size":
        return -1 if marker.size is None else marker.size
    return getattr(marker, name)
