"""os-server-external-events: events of other services about servers. For the service role and admins."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from compute.api.base import ComputeView
from compute.api.fields import object_schema
from compute.contract import validation
from compute.contract.microversion import Version
from compute.external_events import event_types, receive
from compute.external_events.journal import ACCEPTED

MOST = 1000  # events per request


class ServerExternalEventsView(ComputeView):
    """POST /os-server-external-events."""

    def post(self, request: Request) -> Response:
        """Journal events, and answer a code for each: 200 if all are accepted, else 207. Waits for no host."""
        self.check("os_compute_api:os-server-external-events:create")
        events = validation.check(request.data, _schema(self.version))["events"]
        codes = receive.receive(events, self.caller, self.request_id)
        answers = [event | _result(code) for event, code in zip(events, codes, strict=True)]
        return Response({"events": answers}, status=200 if all(code == ACCEPTED for code in codes) else 207)


def _schema(version: Version) -> dict[str, Any]:
    event = object_schema(
        {
            "server_uuid": validation.UUID,
            "name": {"type": "string", "enum": event_types.known(version)},
            "status": {"type": "string", "enum": list(event_types.STATUSES)},
            "tag": {"type": "string", "maxLength": 255},
        },
        ["server_uuid", "name"],
    )
    many = {"maxItems": MOST, "errorMessage": f"One request has at most {MOST} events."}
    return object_schema({"events": {"type": "array", "minItems": 1, "items": event, "allOf": [many]}}, ["events"])


def _result(code: int) -> dict[str, Any]:
    return {"code": code, "status": "completed" if code == ACCEPTED else "failed"}
