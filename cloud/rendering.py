"""JSON in and out, by orjson."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import orjson
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer

from cloud.errors import BadRequest


class OrjsonRenderer(BaseRenderer):
    """Answers in JSON, whatever the client accepts: that is what OpenStack services do."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None,
               renderer_context: Mapping[str, Any] | None = None) -> bytes:  # fmt: skip
        """b"" for answers without a body."""
        return b"" if data is None else orjson.dumps(data)


class OrjsonParser(BaseParser):
    """Request bodies: one JSON value."""

    media_type = "application/json"

    def parse(self, stream: IO[bytes], media_type: str | None = None,
              parser_context: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
        """The value. Raises BadRequest with the place of the mistake."""
        raw = stream.read()
        if not raw:
            return {}
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            raise BadRequest(f"Malformed request body: {exc}") from exc
