"""POST /servers/{id}/action: the single key of the body names the action."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest
from compute import actions, lookup, schema
from compute.api import server_view
from compute.api.base import ComputeView, link
from compute.errors import ServerLocked, ServerNotReady
from compute.lifecycle import Asked, ServerAction
from compute.models import Instance


class ServerActionView(ComputeView):
    """Every action goes this way, in this order of refusals: 400, 404, 403, 409."""

    def post(self, request: Request, server_id: str) -> Response:
        """Answers at once; the work is journaled."""
        action, value = self._parse(request.data)
        with lookup.server(server_id, self.caller) as instance:
            self.check(action.policy, instance.project_id)
            _refuse(action, instance, self.caller.is_admin)
            asked = Asked(self.caller, self.request_id, value, self.version)
            answer = action.submit(instance, asked)
            if answer.server is not None:
                shown = server_view.future(instance, answer.server, self.version, self.caller)
                answer.body, answer.headers = {"server": shown}, {"Location": link(f"/servers/{server_id}")}
        return Response(answer.body, status=answer.status, headers=answer.headers)

    def _parse(self, body: Any) -> tuple[ServerAction, Any]:
        if not isinstance(body, dict) or len(body) != 1:
            raise BadRequest("Malformed request body")
        key, value = next(iter(body.items()))
        action = actions.keyed(key, self.version)
        if action is None:
            raise BadRequest(f"There is no such action: {key}")
        schema.check({key: value}, {"properties": {key: action.schema(self.version)}})
        return action, value


def _refuse(action: ServerAction, instance: Instance, is_admin: bool) -> None:
    """Raises ServerLocked, ServerNotReady."""
    if action.minds_lock and instance.locked_by and not is_admin:
        raise ServerLocked(instance.uuid)
    if action.needs_host and not instance.host:
        raise ServerNotReady(instance.uuid)
