"""Authentication of hosts, which fetch and store image content with a ticket instead of a token."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from cloud import errors
from cloud.caller import Caller
from cloud.images import tickets

HEADER = "X-Image-Ticket"  # in no access log, unlike the query


@dataclass(frozen=True, slots=True)
class TicketHolder:
    """`request.auth` of a request with a valid ticket: the image, and the right."""

    image_id: str
    right: tickets.Right


class TicketAuthentication(BaseAuthentication):
    """Accepts `?ticket=` or the header X-Image-Ticket, for the image of the path and the right of the method."""

    def authenticate(self, request: Request) -> tuple[Caller, TicketHolder] | None:
        """Return a caller and the TicketHolder; None without a ticket. Raises AuthenticationFailed."""
        ticket = request.headers.get(HEADER) or request.query_params.get("ticket")
        if not ticket:
            return None
        image_id = request.parser_context["kwargs"]["image_id"]
        right: tickets.Right = "write" if request.method == "PUT" else "read"
        try:
            tickets.check(ticket, image_id, right)
        except errors.Unauthorized as exc:
            raise exceptions.AuthenticationFailed from exc
        return Caller(user_id=""), TicketHolder(image_id, right)


def hide_ticket(request: HttpRequest) -> None:
    """Keep the ticket only in `request.GET`: Django's and gunicorn's logs show addresses with their query."""
    if "ticket" in request.GET:
        request.META["QUERY_STRING"] = "ticket=hidden"
        if "RAW_URI" in request.META:
            request.META["RAW_URI"] = f"{request.path}?ticket=hidden"
