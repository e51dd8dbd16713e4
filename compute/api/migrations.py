"""/servers/{id}/migrations and os-migrations: migrations in progress and past; abort and force-complete."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from cells.models import Cell
from cloud.errors import BadRequest, NotFound
from compute.api import migration_view, paging
from compute.api.base import ComputeView
from compute.api.fields import object_schema
from compute.api.server_query import moment
from compute.contract import validation
from compute.migration import control, history
from compute.migration.history import IN_PROGRESS
from compute.migration.moves import MoveParams
from compute.operations import registry
from compute.operations.action import ActionRequest, Role
from compute.servers import listing, lookup

FORCE = object_schema({"force_complete": {"type": "null"}}, ["force_complete"])
RULE, ALL_RULE = "os_compute_api:servers:migrations:index", "os_compute_api:os-migrations:index"
FILTERS = {
    (2, 1): {"hidden", "host", "instance_uuid", "source_compute", "status", "migration_type"},
    (2, 59): {"limit", "marker", "changes-since"},
    (2, 66): {"changes-before"},
    (2, 80): {"user_id", "project_id"},
}


class ServerMigrationsView(ComputeView):
    """GET /servers/{id}/migrations: the live migrations in progress."""

    since = (2, 23)

    def get(self, request: Request, server_id: str) -> Response:
        """List them. There is at most one, because a server has one migration at a time."""
        with lookup.server(server_id, self.caller) as instance:
            self.check(RULE, instance.project_id)
            show = self.allows(f"{RULE}:host")
            key = registry.key_of(Role.LIVE_MIGRATION)
            live = Q(server_id=instance.uuid, key=key, finished_at__isnull=True, status__in=IN_PROGRESS)
            found = history.migrations(live).order_by("-pk")
            shown = [migration_view.of_server(row, self.version, show_hosts=show) for row in found]
        return Response({"migrations": shown})


class ServerMigrationView(ComputeView):
    """GET and DELETE /servers/{id}/migrations/{id}."""

    since = (2, 23)

    def get(self, request: Request, server_id: str, migration_id: str) -> Response:
        """Show a live migration in progress."""
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:show", instance.project_id)
            row = control.find(instance, migration_id)
            if not history.is_live(row):
                raise NotFound(f"Migration {migration_id} for server {server_id} is not live-migration.")
            if history.status(row) not in IN_PROGRESS:
                raise NotFound(f"Migration {migration_id} for server {server_id} is not in progress.")
            shown = migration_view.of_server(row, self.version, show_hosts=True)
        return Response({"migration": shown})

    def delete(self, request: Request, server_id: str, migration_id: str) -> Response:
        """Abort a migration: a running one since 2.24, a queued one since 2.65; also while its hosts drain."""
        if self.version < (2, 24):
            raise NotFound
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:delete", instance.project_id)
            asked = ActionRequest(self.caller, self.request_id)
            control.abort(instance, migration_id, asked, queued=self.version >= (2, 65))
        return Response(status=202)


class ServerMigrationActionView(ComputeView):
    """POST /servers/{id}/migrations/{id}/action."""

    since = (2, 22)

    def post(self, request: Request, server_id: str, migration_id: str) -> Response:
        """Force-complete a live migration, the only action there is."""
        validation.check(request.data, FORCE)
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:force_complete", instance.project_id)
            control.force(instance, migration_id, ActionRequest(self.caller, self.request_id))
        return Response(status=202)


class MigrationsView(ComputeView):
    """GET /os-migrations: the migrations of every cell that answers, newest first."""

    def get(self, request: Request) -> Response:
        """List migrations by filter; since 2.59 by page."""
        project = self.caller.project_id
        self.check(ALL_RULE, project)
        paged = self.version >= (2, 59)
        limit = paging.limit_of(request) if paged else None
        marker = request.query_params.get("marker", "") if paged else ""
        everybodys = self.allows(f"{ALL_RULE}:all_projects")
        where = self._where(None if everybodys else project)
        found = history.page(where, limit, marker, keys=self._keys())
        if found.down:
            listing.check_partial_list_allowed(Cell.objects.filter(pk__in=found.down), "" if everybodys else project)
        show = self.allows(f"{ALL_RULE}:host")
        rows = [row for _, row in found.rows]
        answer: dict[str, Any] = {
            "migrations": [migration_view.of_all(row, self.version, show_hosts=show) for row in rows]
        }
        last = MoveParams.load(rows[-1].params).uuid if rows else ""
        more = paging.next_link(request, "/os-migrations", len(rows), last) if paged else []
        return Response(answer | ({"migrations_links": more} if more else {}))

    def _keys(self) -> list[str]:
        wanted = self.request.query_params.get("migration_type")
        return [key for key, shown in history.types().items() if wanted in (None, shown)]

    def _where(self, project: str | None) -> Q:
        """Return the filter for the cells.

        Before 2.59 an unknown parameter is ignored, later it raises BadRequest.
        """
        query = self.request.query_params
        known = {name for since, names in FILTERS.items() if self.version >= since for name in names}
        if self.version >= (2, 59) and (strange := next((name for name in query if name not in known), None)):
            raise BadRequest(
                "Invalid input for query parameters. Additional properties are not allowed "
                f"('{strange}' was unexpected)"
            )
        where = Q() if project is None else Q(project_id=project)
        for name in known & set(query):
            where &= _meaning(name, query[name])
        if self.version >= (2, 66):
            _check_span(query)
        return where


def _meaning(name: str, value: str) -> Q:
    """Return the condition of one parameter. Raises InvalidInput."""
    match name:
        case "instance_uuid":
            return Q(server_id=value)
        case "source_compute":
            return Q(params__source=value)
        case "host":
            return Q(params__source=value) | Q(params__destination=value)
        case "hidden":
            return Q(pk__in=[]) if validation.is_true(value) else Q()  # no migration is hidden
        case "changes-since":
            return Q(updated_at__gte=moment(name, value))
        case "changes-before":
            return Q(updated_at__lte=moment(name, value))
        case "status" | "user_id" | "project_id":
            return Q(**{name: value})
    return Q()


def _check_span(query: Any) -> None:
    since, before = query.get("changes-since"), query.get("changes-before")
    if since and before and moment("changes-since", since) > moment("changes-before", before):
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")
