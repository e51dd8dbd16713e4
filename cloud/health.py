"""/healthz: the process lives. /readyz: it can serve requests; a down cell does not make it unready."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse

from cloud.serving.middleware import is_late


def healthz(request: HttpRequest) -> JsonResponse:
    """Return 200 while the process answers at all."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Return 200 when the global database answers, else 503 with the reason; 503 "draining" comes first."""
    if is_late(request):
        return JsonResponse({"status": "draining", "reason": "the API is shutting down"}, status=503)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "no", "reason": "global database does not answer"}, status=503)
    return JsonResponse({"status": "ready"})
