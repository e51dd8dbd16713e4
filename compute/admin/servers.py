"""The pages of servers: the list over all cells, and one server with its history."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells import scatter
from cells.models import Cell, InstanceMapping, ServerSnapshot
from compute import state
from compute.admin import (
    action_forms,
    badges,
    last_known,
    migrations,
    open_operations,
    repairs,
    server_detail,
    server_warnings,
)
from compute.models import Instance

LISTED = (
    "uuid", "display_name", "vm_state", "task_state", "power_state", "host", "project_id", "created_at",
    "updated_at", "deleted",
)  # fmt: skip
NAMES_FOUND = 200  # per cell; a search that finds more is too wide to read


class Deleted(admin.SimpleListFilter):
    """The filter on deletion. Its default shows servers that are not queued for deletion."""

    title = "delete requested"
    parameter_name = "queued"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the choices beside the default."""
        return [("yes", "Yes"), ("all", "All")]

    def choices(self, changelist: Any) -> Any:
        """Rename Django's default choice from "All" to "No"."""
        for index, choice in enumerate(super().choices(changelist)):
            yield choice | {"display": "No"} if index == 0 else choice

    def queryset(self, request: HttpRequest, rows: QuerySet[InstanceMapping]) -> QuerySet[InstanceMapping]:
        """Filter the mappings. A null is from before the column existed, and means no."""
        if self.value() == "all":
            return rows
        asked = Q(queued_for_delete=True)
        return rows.filter(asked if self.value() == "yes" else ~asked)


class Project(admin.SimpleListFilter):
    """The filter on projects. It lists the first 30; others are found by searching for their id."""

    title = "project"
    parameter_name = "project_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the first projects that have servers, read from the index."""
        ids = InstanceMapping.objects.order_by("project_id").values_list("project_id", flat=True).distinct()
        return [(project, project) for project in ids[:30]]

    def queryset(self, request: HttpRequest, rows: QuerySet[InstanceMapping]) -> QuerySet[InstanceMapping]:
        """Filter the mappings by project."""
        return rows.filter(project_id=self.value()) if self.value() else rows


@admin.register(InstanceMapping)
class ServerPage(look.JoinedPage):
    """The pages of servers. A server whose cell does not answer is listed as UNKNOWN."""

    list_display = ("server", "name", "status", "task", "cell", "host", "power", "project_id", "created")
    list_filter = (Deleted, "cell", Project)
    list_select_related = ("cell",)
    list_display_links = ("server",)
    search_fields = ("server_id",)
    search_help_text = "Server id, project id, or a part of the name."
    ordering = ("-created_at", "server_id")
    list_fullwidth = True
    list_before_template = "admin/stillwater/down_servers.html"

    def get_custom_urls(self) -> tuple[Any, ...]:
        """Return the URLs of action pages. They are here because records of cells have no admin pages of their own."""
        return (
            ("in-progress/", "actions_in_progress", open_operations.view),
            ("migrations/", "migrations", migrations.view),
        )

    def join(self, rows: list[Any]) -> None:
        """Add to each server its row and warnings, with three queries per cell; for down cells what is last known."""
        ids: dict[str, list[str]] = {}
        for row in rows:
            ids.setdefault(row.cell_id, []).append(row.pk)
        cells = {row.cell_id: row.cell for row in rows if row.cell_id}

        def read(cell: Cell) -> tuple[dict[str, Instance], server_warnings.HostsOfServers]:
            found = {one.uuid: one for one in Instance.objects.filter(uuid__in=ids[cell.pk]).only(*LISTED)}
            return found, server_warnings.around(found.values())

        gathered = scatter.gather(cells.values(), read)
        for row in rows:
            found, row.around = gathered.answers.get(row.cell_id, ({}, None))
            row.instance, row.down = found.get(row.pk), gathered.down.get(row.cell_id)
        last = last_known.of(row.pk for row in rows if row.down)
        for row in rows:
            row.last = last.get(row.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[InstanceMapping], search_term: str
    ) -> tuple[QuerySet[InstanceMapping], bool]:
        """Search by id here and by name in all cells; in down cells by the last known name, with a warning."""
        term = search_term.strip()
        if not term:
            return queryset, False

        def named(_: Cell) -> list[str]:
            found = Instance.objects.living(display_name__icontains=term)
            return list(found.values_list("uuid", flat=True)[:NAMES_FOUND])

        cells = {cell.pk: cell for cell in Cell.objects.all()}
        gathered = scatter.gather(cells.values(), named)
        by_name = [server_id for ids in gathered.values() for server_id in ids]
        if gathered.down:
            names = ", ".join(cells[cell_id].name for cell_id in gathered.down)
            messages.warning(request, f"These cells do not answer and were searched by the last known names: {names}.")
            last = ServerSnapshot.objects.filter(cell__in=gathered.down, name__icontains=term)
            by_name += last.values_list("pk", flat=True)[:NAMES_FOUND]
        by_id = Q(server_id__startswith=term.lower()) | Q(project_id=term)
        return queryset.filter(by_id | Q(pk__in=by_name)), False

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one server. A POST is a pressed button, which requests an action the same way as the API."""
        may_ask = action_forms.may_ask(request)
        if not self.has_view_permission(request) or (request.method == "POST" and not may_ask):
            raise PermissionDenied
        mapping = InstanceMapping.objects.select_related("cell").filter(pk=object_id).first()
        if mapping is None:
            raise Http404(f"Server {object_id} does not exist.")
        if request.method == "POST":
            verb = request.POST.get("verb", "")
            carry_out = repairs.carry_out if verb in repairs.VERBS else action_forms.carry_out
            messages.info(request, carry_out(request, mapping))
            return HttpResponseRedirect(request.path)
        who = action_forms.caller(request, mapping) if may_ask else None
        context = self.admin_site.each_context(request) | server_detail.context(mapping, who)
        return TemplateResponse(request, "admin/stillwater/server.html", context | {"opts": self.opts})

    @admin.display(description="Server", ordering="server_id")
    def server(self, row: Any) -> str:
        """Return the id."""
        return str(row.pk)

    @admin.display(description="Name")
    def name(self, row: Any) -> str:
        """Return the name. A user chose it; Django escapes it."""
        if row.last is not None:
            return f"{row.last.name} (last known)"
        return row.instance.display_name if row.instance else "-"

    @admin.display(description="Status")
    def status(self, row: Any) -> SafeString:
        """Return the status as in the API, with warnings; UNKNOWN when the cell does not answer."""
        if row.down is not None:
            since = look.down_for(row.cell_id)
            unknown = badges.status("UNKNOWN", f"cell {row.cell.name}: {row.down.reason}")
            if row.last is None:
                return format_html("{} for {}", unknown, since)
            was, ago = last_known.status(row.last), last_known.age(row.last)
            return format_html("{} for {}; {} {} ago", unknown, since, was, ago)
        if row.instance is None:
            return look.label(
                "not scheduled yet" if row.cell_id is None else "not found in its cell", look.GREY, "…"
            )
        shown = badges.status(state.status(row.instance.vm_state, row.instance.task_state))
        return format_html("{} {}", shown, row.around.sign(row.instance))

    @admin.display(description="Task")
    def task(self, row: Any) -> str:
        """Return the task state."""
        return (row.instance.task_state or "") if row.instance else "-"

    @admin.display(description="Host")
    def host(self, row: Any) -> str:
        """Return the host."""
        if row.last is not None and row.last.host:
            return f"{row.last.host} (last known)"
        return row.instance.host if row.instance else "-"

    @admin.display(description="Power")
    def power(self, row: Any) -> str:
        """Return the power state the hypervisor last reported."""
        return badges.power(row.instance.power_state) if row.instance else "-"

    @admin.display(description="Age", ordering="created_at")
    def created(self, row: Any) -> str:
        """Return the time since the server was requested."""
        return look.age(row.created_at)
