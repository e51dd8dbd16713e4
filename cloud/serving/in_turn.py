"""Requests are worked on in the order they came; probes, which hardly cost anything, at once."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from cloud.serving import cpu_slots
from cloud.serving.fair_queue import Turns
from cloud.serving.middleware import PROBES

_turns = Turns(cpu_slots.of_machine)  # of this process


def in_turn(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, right after the one that turns away."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path in PROBES:
            return get_response(request)
        with _turns.one():
            return get_response(request)

    return middleware
