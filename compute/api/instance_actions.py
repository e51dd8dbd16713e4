"""/servers/{id}/os-instance-actions: the journal as Nova's instance actions. Since 2.21 also of deleted servers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.errors import BadRequest, NotFound
from compute.api import paging
from compute.api.base import ComputeView
from compute.api.server_query import moment
from compute.api.server_view import host_id
from compute.errors import ServerNotFound
from compute.models import Instance, InstanceAction, Step
from compute.operations import registry
from compute.servers import lookup
from compute.shutdown import status

_RESULTS = {Step.State.DONE: "Success", Step.State.FAILED: "Error", Step.State.CANCELLED: "Error"}


class InstanceActionsView(ComputeView):
    """The actions of a server, newest first."""

    def get(self, request: Request, server_id: str) -> Response:
        """List the actions; since 2.58 with paging and `changes-since`."""
        mapping = lookup.mapping_of(server_id, self.caller)
        self.check("os_compute_api:os-instance-actions:list", mapping.project_id)
        if mapping.cell is None and BuildRequest.objects.filter(pk=server_id).exists():
            return Response({"instanceActions": []})  # the journal begins in the cell
        rows = lookup.ask(_cell_of(mapping), lambda: self._rows(request, server_id))
        answer: dict[str, Any] = {"instanceActions": [self._shape(row) for row in rows]}
        if self.version >= (2, 58):
            path = f"/servers/{server_id}/os-instance-actions"
            more = paging.next_link(request, path, len(rows), rows[-1].request_id if rows else "")
            answer |= {"links": more} if more else {}
        return Response(answer)

    def _rows(self, request: Request, server_id: str) -> list[InstanceAction]:
        self._must_be_visible(server_id)
        found = _shown(server_id).order_by("-started_at", "-pk")
        return self._page(request, found) if self.version >= (2, 58) else list(found[:1000])

    def _must_be_visible(self, server_id: str) -> None:
        """Raise ServerNotFound for an unknown server, and before 2.21 for a deleted one."""
        known = Instance.objects.filter(uuid=server_id)
        if self.version < (2, 21):
            known = known.filter(deleted=False)
        if not known.exists():
            raise ServerNotFound(server_id)

    def _page(self, request: Request, found: Any) -> list[InstanceAction]:
        query = request.query_params
        if "changes-since" in query:
            found = found.filter(updated_at__gte=moment("changes-since", query["changes-since"]))
        if "changes-before" in query and self.version >= (2, 66):
            found = found.filter(updated_at__lte=moment("changes-before", query["changes-before"]))
        if query.get("marker"):
            marker = found.filter(request_id=query["marker"]).first()
            if marker is None:
                raise BadRequest(f"marker [{query['marker']}] not found")
            same_moment = Q(started_at=marker.started_at, pk__lt=marker.pk)
            found = found.filter(same_moment | Q(started_at__lt=marker.started_at))
        return list(found[: paging.limit_of(request)])

    def _shape(self, row: InstanceAction) -> dict[str, Any]:
        shape = {
            "action": row.action,
            "instance_uuid": row.server_id,
            "request_id": row.request_id,
            "user_id": row.user_id,
            "project_id": row.project_id,
            "start_time": _naive(row.started_at),
            "message": row.message,
        }
        if self.version >= (2, 58):
            shape["updated_at"] = _naive(row.updated_at)
        return shape


class InstanceActionView(InstanceActionsView):
    """One action and its steps, which Nova calls events."""

    def get(self, request: Request, server_id: str, action_id: str) -> Response:  # type: ignore[override]
        """Show the action with a request id."""
        mapping = lookup.mapping_of(server_id, self.caller)
        self.check("os_compute_api:os-instance-actions:show", mapping.project_id)
        row, steps = lookup.ask(_cell_of(mapping), lambda: self._row(server_id, action_id))
        shape = self._shape(row)
        if self.version >= (2, 51) or self.allows("os_compute_api:os-instance-actions:events"):
            shape["events"] = [self._event(step, mapping.project_id) for step in steps]
        return Response({"instanceAction": shape})

    def _row(self, server_id: str, action_id: str) -> tuple[InstanceAction, list[Step]]:
        self._must_be_visible(server_id)
        row = _shown(server_id).filter(request_id=action_id).first()
        if row is None:
            raise NotFound(f"Action for request_id {action_id} on instance {server_id} not found")
        return row, list(row.steps.select_related("action").order_by("queued_at", "pk"))

    def _event(self, step: Step, project_id: str) -> dict[str, Any]:
        admin = self.allows("os_compute_api:os-instance-actions:events")
        event: dict[str, Any] = {
            "event": step.event,
            "start_time": _naive(step.started_at or step.queued_at),
            "finish_time": _naive(step.finished_at),
            "result": _RESULTS.get(Step.State(step.state)),
        }
        if admin:
            event["traceback"] = step.traceback or None
        if self.version >= (2, 62):
            event["hostId"] = host_id(project_id, step.host)
            if admin:
                event["host"] = step.host or step.worker or None
        if self.version >= (2, 84) and self.allows("os_compute_api:os-instance-actions:events:details"):
            event["details"] = step.details or None
        if self.version >= (2, 84) and step.timer is not None:  # the owner may see how the guest shut down
            event["shutdown"] = status.as_json(step)
        return event


def _cell_of(mapping: InstanceMapping) -> Cell:
    """Raise ServerNotFound when the server has no cell."""
    if mapping.cell is None:
        raise ServerNotFound(mapping.server_id)
    return mapping.cell


def _shown(server_id: str) -> QuerySet[InstanceAction]:
    """Return the actions that are part of a server's history; the journal has others."""
    hidden = registry.keys(lambda action: not action.is_shown)
    return InstanceAction.objects.filter(server_id=server_id).exclude(key__in=hidden)


def _naive(when: datetime | None) -> str | None:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%f") if when else None
