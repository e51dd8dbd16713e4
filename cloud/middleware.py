"""Middleware of every request: its request id, and a limit on its body."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from cloud import log
from cloud.caller import new_request_id

_REQUEST_ID = re.compile(r"req-[0-9a-f-]{36}\Z")
_UNLIMITED = re.compile(r"/image/v2/images/[^/]+/file\Z")


class RequestIdMiddleware:
    """Gives each request its `req-…` id, in logs and answer. A well-formed id from the client is kept."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the answer, with both id headers that Nova sends."""
        sent = request.headers.get("X-Openstack-Request-Id", "")
        request_id = sent if _REQUEST_ID.match(sent) else new_request_id()
        request.request_id = request_id  # type: ignore[attr-defined]
        log.clear()
        log.bind(request_id=request_id)
        response = _too_large(request) or _malformed(request) or self.get_response(request)
        response["x-openstack-request-id"] = request_id
        response["x-compute-request-id"] = request_id
        return response


def _malformed(request: HttpRequest) -> HttpResponse | None:
    """Reject NUL characters in path and query: no text in PostgreSQL can hold one."""
    if "\0" not in request.path and "%00" not in request.META.get("QUERY_STRING", ""):
        return None
    text = "Malformed request URL: it has a NUL character"
    return JsonResponse({"badRequest": {"code": 400, "message": text}}, status=400)


def _too_large(request: HttpRequest) -> HttpResponse | None:
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    try:
        size = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        size = 0
    if size <= limit or _UNLIMITED.search(request.path):
        return None
    text = f"Request is too large: {size} bytes, at most {limit} are taken."
    return JsonResponse({"overLimit": {"code": 413, "message": text}}, status=413)
