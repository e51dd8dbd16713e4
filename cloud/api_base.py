"""Shared by the views of identity and images: the base view, checked bodies and queries, paged lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jsonschema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from cloud import errors
from cloud.caller import Caller

_MOST = 1000


class JsonView(APIView):
    """A view that rejects what no column can hold before its method runs."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise BadRequest for NUL characters in path or query: no text in PostgreSQL can hold one."""
        values = [str(value) for value in kwargs.values()]
        for key, found in request.query_params.lists():
            values += [key, *found]
        if any("\0" in value for value in values):
            raise errors.BadRequest("NUL characters are not allowed in paths and queries.")
        super().initial(request, *args, **kwargs)


def caller(request: Request) -> Caller:
    """Return the caller. Our authentication sets a Caller where Django and DRF expect a user record."""
    return cast(Caller, request.user)


def body(request: Request, schema: dict[str, Any]) -> Any:
    """Return the JSON body, valid by the schema. Raises BadRequest, whose text never repeats a value."""
    data = request.data
    validator = jsonschema.Draft202012Validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(data))
    if error is not None:
        raise errors.BadRequest(_sentence(error))
    if _holds_nul(data):
        raise errors.BadRequest("NUL characters are not allowed.")
    return data


def whole_number(request: Request, name: str, default: int = 0) -> int:
    """Return a non-negative integer of the query. Raises BadRequest."""
    raw = request.query_params.get(name)
    if raw is None:
        return default
    if not (raw.isascii() and raw.isdigit() and len(raw) < 19):
        raise errors.BadRequest(f"Invalid input for query parameter {name}: not a non-negative integer.")
    return int(raw)


def is_true(raw: str | None) -> bool:
    """Return True for the words that clients use for true, and for a bare `?name`."""
    return raw is not None and raw.lower() in {"", "1", "true", "yes", "on", "t", "y"}


def page(request: Request, records: Any, key: str, url: str, view: Callable[[Any], Any]) -> Response:
    """Return Keystone's list answer, ordered by id, with `limit` and `marker`.

    openstacksdk does not follow Keystone's `links.next`, but it follows a Link header.
    """
    limit = min(whole_number(request, "limit", _MOST) or _MOST, _MOST)
    records = records.order_by("pk")
    if marker := request.query_params.get("marker"):
        records = records.filter(pk__gt=marker)
    found = list(records[: limit + 1])
    shown = found[:limit]
    following = None
    if len(found) > limit:
        query = request.query_params.copy()
        query["marker"] = str(shown[-1].pk)
        following = f"{url}?{query.urlencode()}"
    links = {"next": following, "self": url, "previous": None}
    headers = {"Link": f'<{following}>; rel="next"'} if following else None
    return Response({key: [view(record) for record in shown], "links": links}, headers=headers)


def _sentence(error: jsonschema.ValidationError) -> str:
    where = "/".join(str(step) for step in error.absolute_path) or "body"
    if error.validator in {"required", "additionalProperties"}:
        return f"Invalid input for field '{where}': {error.message}"
    if error.validator in {"oneOf", "anyOf", "not", "if"}:
        return f"Invalid input for field '{where}': not of a known shape"
    return f"Invalid input for field '{where}': expected {error.validator} {error.validator_value}"


def _holds_nul(data: Any) -> bool:
    if isinstance(data, str):
        return "\0" in data
    if isinstance(data, dict):
        return any(_holds_nul(key) or _holds_nul(value) for key, value in data.items())
    return isinstance(data, list) and any(map(_holds_nul, data))
