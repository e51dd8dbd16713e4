"""The answer to requests that come after SIGTERM: 503 at once, with Retry-After, in the shape that the client knows."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from cloud import errors, faults
from cloud.serving.in_flight import FLIGHT, InFlight

PROBES = frozenset({"/healthz", "/readyz", "/metrics"})  # their views answer during a drain


def turn_away(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, right after the one that sets request ids: refuse late requests; record the id in the InFlight."""

    def middleware(request: HttpRequest) -> HttpResponse:
        flight: InFlight | None = request.META.get(FLIGHT)
        if flight is not None:
            flight.request_id = getattr(request, "request_id", "")
            if flight.late and request.path not in PROBES:
                flight.refused = True
                return _refused(request)
        return get_response(request)

    return middleware


def is_late(request: HttpRequest) -> bool:
    """Return whether the request came while the API refuses requests."""
    flight: InFlight | None = request.META.get(FLIGHT)
    return flight is not None and flight.late


def _refused(request: HttpRequest) -> HttpResponse:
    error = errors.Unavailable("The API is shutting down. Try again in a few seconds.")
    identity = request.path.startswith("/identity")
    shaped = (faults.identity_handler if identity else faults.compute_handler)(error, {})
    return JsonResponse(shaped.data, status=shaped.status_code, headers={"Retry-After": shaped["Retry-After"]})
