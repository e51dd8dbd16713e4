"""/servers: list, create, show, update, delete."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from cells.context import current_alias
from cells.models import Cell, InstanceMapping
from cloud.errors import Forbidden
from compute.api import paging, server_create, server_down_cell, server_metadata, server_query, server_view
from compute.api.base import ComputeView, link, links
from compute.api.server_query import Filters
from compute.api.server_view import View
from compute.contract import validation
from compute.errors import ServerNotFound
from compute.operations.action import ActionRequest
from compute.servers import create, deferred_deletes, listing, lookup, rows
from compute.servers.list_query import NEWEST_FIRST, Query
from compute.shutdown import options


class ServersView(ComputeView):
    """GET and POST /servers."""

    rule = "os_compute_api:servers:index"
    kind = "brief"

    def get(self, request: Request) -> Response:
        """List servers (/servers and /servers/detail), merged over the cells that answer."""
        self.check(self.rule)
        everything = self.allows("os_compute_api:servers:allow_all_filters")
        filters = server_query.parse(request.query_params, self.version, is_admin=everything)
        if filters.all_tenants:
            self.check(f"{self.rule}:get_all_tenants")
        view = View.of(self.version, self.caller)
        query = Query(
            where=self._scope(filters) & filters.where,
            sort=server_query.sorting(request.query_params, is_admin=self.caller.is_admin),
            limit=paging.limit_of(request),
            show=server_view.summary
            if self.kind == "brief"
            else partial(server_view.details, view=view, detail_list=True),
            names_only=self.kind == "brief",
            with_status=self.kind == "detail" and view.sees_status,
            marker=request.query_params.get("marker", ""),
            marker_project="" if filters.all_tenants else self.caller.project_id,
            project_id=None if self._are_all_listed(filters) else self._project(filters),
        )
        query.newest_first = filters.is_none and query.sort == NEWEST_FIRST
        listed = listing.servers(query)
        answer: dict[str, Any] = {"servers": self._unknown(listed.down, filters) + listed.servers}
        more = paging.next_link(request, self._path, len(listed.servers), listed.last)
        if more:
            answer["servers_links"] = more
        return Response(answer)

    def post(self, request: Request) -> Response:
        """Accept servers: they are recorded, then placed and built later."""
        self.check("os_compute_api:servers:create")
        body = validation.check(request.data, server_create.schema_for(self.version))
        if not self.caller.project_id:
            raise Forbidden("A server needs a project: ask with a token that is scoped to one.")
        order = server_create.order_of(body, self.caller, self.request_id)
        ids = create.request_servers(order)
        if validation.is_true(body["server"].get("return_reservation_id")):
            return Response({"reservation_id": order.reservation_id}, status=202)
        first = ids[0]
        answer = {
            "server": {
                "id": first,
                "links": links(f"/servers/{first}"),
                "OS-DCF:diskConfig": order.columns["disk_config"],
                "security_groups": [{"name": "default"}],
            }
        }
        return Response(answer, status=202, headers={"Location": link(f"/servers/{first}")})

    @property
    def _path(self) -> str:
        return "/servers" if self.kind == "brief" else "/servers/detail"

    def _scope(self, filters: Filters) -> Q:
        """Return the condition on project and deletion."""
        everything = self._are_all_listed(filters)
        return filters.living() & (Q() if everything else Q(project_id=self._project(filters)))

    def _are_all_listed(self, filters: Filters) -> bool:
        """Whether the servers of all projects are listed. A caller without a project has no servers."""
        return filters.all_tenants and not self._project(filters)

    def _project(self, filters: Filters) -> str:
        """Return the project whose servers are listed; "" with `all_tenants`: all projects."""
        return filters.project_id if filters.all_tenants else self.caller.project_id

    def _unknown(self, down: list[Cell], filters: Filters) -> list[dict[str, Any]]:
        """Return the servers of down cells: since 2.69, in lists without filters and paging. Raises PartialList."""
        project_id = self._project(filters)
        if not down or not (project_id or filters.all_tenants):  # a caller without a project has no servers
            return []
        if self.version < server_down_cell.SINCE or not filters.plain:
            listing.check_partial_list_allowed(down, project_id)
            return []
        shape = server_down_cell.detail if self.kind == "detail" else server_down_cell.brief
        servers = shape(down, project_id, paging.limit_of(self.request))
        return server_down_cell.with_last_known(servers, self.caller) if filters.last_known else servers


class ServersDetailView(ServersView):
    """GET /servers/detail."""

    rule = "os_compute_api:servers:detail"
    kind = "detail"
    http_method_names = ["get", "head", "options"]


class ServerView(ComputeView):
    """GET, PUT and DELETE /servers/{id}."""

    UPDATE = {
        "type": "object",
        "properties": {
            "name": validation.NAME,
            "OS-DCF:diskConfig": {"type": "string", "enum": ["AUTO", "MANUAL"]},
            "accessIPv4": validation.IPV4,
            "accessIPv6": validation.IPV6,
            **options.OWN_OR_NOT,
        },
        "additionalProperties": False,
    }

    def get(self, request: Request, server_id: str) -> Response:
        """Show a server; a server of a down cell as a partial record."""
        view = View.of(self.version, self.caller)
        found = lookup.find(server_id, self.caller, partial(server_view.read_current, view=view))
        self.check("os_compute_api:servers:show", found.mapping.project_id)
        if found.request is not None:
            return Response({"server": server_view.details(rows.of(create.unplaced(found.request), ""), view)})
        if found.read is None:
            return self._down(found.mapping)
        return Response({"server": server_view.current(found.read, view)})

    def put(self, request: Request, server_id: str) -> Response:
        """Change name, description, addresses, host name, disk config and shutdown preferences."""
        changes = validation.check(self.body(), _wrapped(self._update_schema()))["server"]
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:update", instance.project_id)
            columns = {_UPDATES[key]: value for key, value in changes.items() if key in _UPDATES}
            if "access_ip_v6" in columns:
                columns["access_ip_v6"] = validation.short_ipv6(columns["access_ip_v6"])
            with transaction.atomic(using=current_alias()):
                if len(columns) < len(changes):
                    columns["metadata"] = server_metadata.with_shutdown_preferences(self, instance, changes)
                if columns:
                    server_metadata.change(instance, **columns)
            view = View.of(self.version, self.caller)
            changed = server_view.read_current(server_id, view)
            if changed is None:
                raise ServerNotFound(server_id)
            server = server_view.current(changed, view)
            return Response({"server": server_view.before_2_75(server) if self.version < (2, 75) else server})

    def delete(self, request: Request, server_id: str) -> Response:
        """Delete a server in any state, also while its cell is down; `?shutdown_type=SOFT` gives a grace period."""
        words = options.of_query(request.query_params)
        mapping = lookup.mapping_of(server_id, self.caller)
        self.check("os_compute_api:servers:delete", mapping.project_id)
        if create.cancel(server_id):
            return Response(status=204)
        asked = ActionRequest(self.caller, self.request_id, words, self.version)
        deferred_deletes.delete_or_defer(mapping, asked)
        return Response(status=204)

    def _down(self, mapping: InstanceMapping) -> Response:
        known = server_query.wants_last_known(self.request.query_params)
        return Response({"server": server_down_cell.shown(mapping, self.version, self.caller, known=known)})

    def _update_schema(self) -> dict[str, Any]:
        properties = dict(self.UPDATE["properties"])  # type: ignore[call-overload]
        if self.version >= (2, 19):
            properties["description"] = {"type": ["string", "null"], "maxLength": 255}
        if self.version >= (2, 90):
            properties["hostname"] = server_create.schema_for(self.version)["properties"]["server"]["properties"][
                "hostname"
            ]
        return {**self.UPDATE, "properties": properties}


_UPDATES = {
    "name": "display_name", "description": "description", "accessIPv4": "access_ip_v4",
    "accessIPv6": "access_ip_v6", "OS-DCF:diskConfig": "disk_config", "hostname": "hostname",
}  # fmt: skip


def _wrapped(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"server": inner}, "required": ["server"], "additionalProperties": False}
