"""POST /servers/{id}/action: the single key of the body names the action."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from compute.api import server_view
from compute.api.base import ComputeView, link
from compute.operations import submit
from compute.operations.action import ActionRequest
from compute.servers import lookup


class ServerActionView(ComputeView):
    """The view of every server action. Checks come in this order: 400, 404, 403, 409."""

    def post(self, request: Request, server_id: str) -> Response:
        """Record the action and answer at once; the steps run later."""
        action, value = submit.parse(request.data, self.version)
        with lookup.server(server_id, self.caller) as instance:
            asked = ActionRequest(self.caller, self.request_id, value, self.version)
            answer = submit.submit(action, instance, asked)
            if answer.server is not None:
                shown = server_view.with_columns(instance, answer.server, self.version, self.caller)
                answer.body, answer.headers = {"server": shown}, {"Location": link(f"/servers/{server_id}")}
        if answer.later is not None:  # outside the `with`: a silent host must not count as a silent cell
            answer = answer.later()
        return Response(answer.body, status=answer.status, headers=answer.headers)
