"""Servers on their way between hosts: what goes on, what went on, and how to end it early."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from cells import scatter
from cells.models import CELL0, Cell
from cloud.errors import BadRequest, Conflict, NotFound
from compute import journal, lookup, schema
from compute.actions.migrate_live import MigrateLive
from compute.api import migration_view, paging
from compute.api.base import ComputeView
from compute.api.migration_view import LIVE
from compute.api.server_query import moment
from compute.api.wire import closed
from compute.models import Instance, InstanceAction
from compute.state import TaskState

FORCE = closed({"force_complete": {"type": "null"}}, ["force_complete"])
MOST = 1000  # of one cell, the newest
RULE, ALL_RULE = "os_compute_api:servers:migrations:index", "os_compute_api:os-migrations:index"


class ServerMigrationsView(ComputeView):
    """GET /servers/{id}/migrations: live ones in progress."""

    since = (2, 23)

    def get(self, request: Request, server_id: str) -> Response:
        """At most one, for a server moves once at a time."""
        with lookup.server(server_id, self.caller) as instance:
            self.check(RULE, instance.project_id)
            show = self.allows(f"{RULE}:host")
            found = [row for row in _live(instance) if migration_view.status(row) in migration_view.IN_PROGRESS]
            shown = [migration_view.of_server(row, self.version, show_hosts=show) for row in found]
        return Response({"migrations": shown})


class ServerMigrationView(ComputeView):
    """GET and DELETE /servers/{id}/migrations/{id}."""

    since = (2, 23)

    def get(self, request: Request, server_id: str, migration_id: str) -> Response:
        """With its progress."""
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:show", instance.project_id)
            row = _find(instance, migration_id)
            if row.key != LIVE:
                raise NotFound(f"Migration {migration_id} for server {server_id} is not live-migration.")
            if migration_view.status(row) not in migration_view.IN_PROGRESS:
                raise NotFound(f"Migration {migration_id} for server {server_id} is not in progress.")
            shown = migration_view.of_server(row, self.version, show_hosts=True)
        return Response({"migration": shown})

    def delete(self, request: Request, server_id: str, migration_id: str) -> Response:
        """Abort: of one that runs since 2.24, of one that waits since 2.65. Also while its hosts drain."""
        if self.version < (2, 24):
            raise NotFound
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:delete", instance.project_id)
            queued = self.version >= (2, 65)
            may = migration_view.MAY_ABORT_QUEUED if queued else migration_view.MAY_ABORT
            row = _under_way(instance, migration_id, may, "abort live migration")
            _record(self, instance, "live_migration_cancel", row)
            MigrateLive().abort(row)
        return Response(status=202)


class ServerMigrationActionView(ComputeView):
    """POST /servers/{id}/migrations/{id}/action."""

    since = (2, 22)

    def post(self, request: Request, server_id: str, migration_id: str) -> Response:
        """force_complete is the only one."""
        schema.check(request.data, FORCE)
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:servers:migrations:force_complete", instance.project_id)
            row = _under_way(instance, migration_id, migration_view.MAY_FORCE, "force complete")
            _record(self, instance, "live_migration_force_complete", row)
            MigrateLive().force(row)
        return Response(status=202)


class MigrationsView(ComputeView):
    """GET /os-migrations: of every cell that answers, the newest first."""

    def get(self, request: Request) -> Response:
        """Filtered; in pages since 2.59."""
        project = self.caller.project_id
        self.check(ALL_RULE, project)
        where = self._filters(None if self.allows(f"{ALL_RULE}:all_projects") else project)
        cells = Cell.objects.exclude(pk=CELL0)
        answers = scatter.gather(cells, lambda _: list(_newest(where)[:MOST])).values()
        rows = sorted((row for answer in answers for row in answer), key=lambda row: row.started_at, reverse=True)
        status = request.query_params.get("status")
        rows = [row for row in rows if status is None or migration_view.status(row) == status]
        paged = self.version >= (2, 59)
        rows = self._page(rows) if paged else rows[:MOST]
        show = self.allows(f"{ALL_RULE}:host")
        answer: dict[str, Any] = {
            "migrations": [migration_view.of_all(row, self.version, show_hosts=show) for row in rows]
        }
        if paged:
            last = str(rows[-1].params.get("uuid", "")) if rows else ""
            more = paging.next_link(request, "/os-migrations", len(rows), last)
            answer |= {"migrations_links": more} if more else {}
        return Response(answer)

    def _filters(self, project: str | None) -> Q:
        """What the cells can answer."""
        query = self.request.query_params
        where = Q() if project is None else Q(project_id=project)
        if "instance_uuid" in query:
            where &= Q(server_id=query["instance_uuid"])
        if "source_compute" in query:
            where &= Q(params__source=query["source_compute"])
        if "host" in query:
            where &= Q(params__source=query["host"]) | Q(params__destination=query["host"])
        if "migration_type" in query:
            wanted = query["migration_type"]
            where &= Q(key__in=[key for key, shown in migration_view.TYPES.items() if shown == wanted])
        if self.version >= (2, 80):
            for name in ("user_id", "project_id"):
                where &= Q(**{name: query[name]}) if name in query else Q()
        if self.version >= (2, 59) and "changes-since" in query:
            where &= Q(updated_at__gte=moment("changes-since", query["changes-since"]))
        if self.version >= (2, 66) and "changes-before" in query:
            where &= Q(updated_at__lte=moment("changes-before", query["changes-before"]))
        return where

    def _page(self, rows: list[InstanceAction]) -> list[InstanceAction]:
        marker, start = self.request.query_params.get("marker"), 0
        if marker:
            ids = [row.params.get("uuid") for row in rows]
            if marker not in ids:
                raise BadRequest(f"marker [{marker}] not found")
            start = ids.index(marker) + 1
        return rows[start : start + paging.limit_of(self.request)]


def _newest(where: Q) -> QuerySet[InstanceAction]:
    found = InstanceAction.objects.filter(where, key__in=migration_view.TYPES)
    return found.prefetch_related("steps").order_by("-started_at", "-pk")


def _live(instance: Instance) -> QuerySet[InstanceAction]:
    return _newest(Q(server_id=instance.uuid, key=LIVE, finished_at__isnull=True))


def _find(instance: Instance, migration_id: str) -> InstanceAction:
    """Raises NotFound."""
    found = _newest(Q(server_id=instance.uuid, pk=migration_id)) if migration_id.isdigit() else None
    row = found.first() if found is not None and len(migration_id) < 18 else None
    if row is None:
        raise NotFound(f"Migration {migration_id} not found for instance {instance.uuid}")
    return row


def _under_way(instance: Instance, migration_id: str, may: frozenset[str], what: str) -> InstanceAction:
    """A live migration that can be ended early. Raises Conflict, NotFound, BadRequest in Nova's words."""
    if instance.task_state != TaskState.MIGRATING:
        raise Conflict(f"Cannot '{what}' instance {instance.uuid} while it is in task_state {instance.task_state}")
    row = _find(instance, migration_id)
    status = migration_view.status(row)
    if row.key != LIVE or status not in may:
        raise BadRequest(
            f"Migration {migration_id} state of instance {instance.uuid} is {status}. Cannot {what} while the "
            "migration is in this state."
        )
    return row


def _record(view: ComputeView, instance: Instance, name: str, row: InstanceAction) -> None:
    """In the server's history, as what it is: a word to the migration."""
    word = journal.open_action(
        instance, name=name, key="", request_id=view.request_id, user_id=view.caller.user_id,
        project_id=instance.project_id, params={"migration": row.pk},
    )  # fmt: skip
    journal.close_action(word, outcome="told the migration")
