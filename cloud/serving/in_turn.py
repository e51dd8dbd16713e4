"""Requests are worked on in the order they came; probes, which hardly cost anything, at once."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from cloud.serving import places
from cloud.serving.refusal import PROBES
from cloud.turns import Turns

_turns = Turns(places.of_machine)  # of this process


def in_turn(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware, right after the one that turns away."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path in PROBES:
            return get_response(request)
        with _turns.one():
            return get_response(request)

    return middleware
