"""JSON requests and responses, by orjson."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import IO, Any

import orjson
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from cloud.errors import BadRequest

DEEPEST = 64
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class OrjsonRenderer(BaseRenderer):
    """The renderer of all answers: JSON, whatever the client accepts, as OpenStack services do."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None,
               renderer_context: Mapping[str, Any] | None = None) -> bytes:  # fmt: skip
        """Return the JSON; b"" for an answer without a body."""
        # Break the reference cycle of the response, so that a long list is freed when it is sent.
        if isinstance(renderer_context, dict):
            renderer_context.pop("response", None)
        return b"" if data is None else orjson.dumps(data)


class OrjsonParser(BaseParser):
    """The parser of request bodies: one JSON value."""

    media_type = "application/json"

    def parse(self, stream: IO[bytes], media_type: str | None = None,
              parser_context: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
        """Return the value; {} for an empty body. Raises BadRequest with the place of the error."""
        raw = stream.read()
        if not raw:
            return {}
        if _NUL.search(raw):
            raise BadRequest("Malformed request body: a text has a NUL character")
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            raise BadRequest(f"Malformed request body: {exc}") from exc
        if raw.count(b"[") + raw.count(b"{") > DEEPEST and _too_deep(value):
            raise BadRequest(f"Malformed request body: nested more than {DEEPEST} deep")
        return value


def _too_deep(value: Any) -> bool:
    """Return whether it is nested too deeply. Later code walks a body recursively, so this does not."""
    level = [value]
    for _ in range(DEEPEST + 1):
        containers = [thing for thing in level if isinstance(thing, dict | list)]
        level = [inner for thing in containers for inner in (thing.values() if isinstance(thing, dict) else thing)]
        if not level:
            return False
    return True


class AlwaysJson(BaseContentNegotiation):
    """Content negotiation: the first parser of the content type, and JSON whatever the client accepts."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        """Return the parser of the body's content type; None: 415."""
        media_type = (request.content_type or "").split(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> Any:
        """Return the only renderer."""
        only = next(iter(renderers))
        return only, only.media_type
