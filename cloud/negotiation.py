"""JSON is answered whatever a client accepts: SDKs send an empty Accept with actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request


class AlwaysJson(BaseContentNegotiation):
    """Takes the first parser that knows the content type, and answers JSON whatever is accepted."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        """The parser of the body's content type, or None: 415."""
        media_type = (request.content_type or "").split(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> Any:
        """The only one there is."""
        only = next(iter(renderers))
        return only, only.media_type
