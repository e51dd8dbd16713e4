"""What a client is told that comes after SIGTERM: 503 at once, when to come back, in the shape it knows."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse

from cloud import errors, faults
from cloud.serving.in_flight import FLIGHT, InFlight

PROBES = frozenset({"/healthz", "/readyz", "/metrics"})  # they answer for themselves


def turn_away(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, right after the one that gives ids: refuses what is late, and tells the flight its id."""

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
    """Whether it came while the API turns requests away."""
    flight: InFlight | None = request.META.get(FLIGHT)
    return flight is not None and flight.late


def _refused(request: HttpRequest) -> HttpResponse:
    error = errors.Unavailable("The API is shutting down. Try again in a few seconds.")
    identity = request.path.startswith("/identity")
    shaped = (faults.identity_handler if identity else faults.compute_handler)(error, {})
    return JsonResponse(shaped.data, status=shaped.status_code, headers={"Retry-After": shaped["Retry-After"]})
