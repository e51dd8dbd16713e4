"""Admin pages of cells and of servers that are not in one yet."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connections
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_look as look
from cells.models import BuildRequest, Cell, InstanceMapping, masked


@admin.register(Cell)
class CellPage(look.JoinedPage):
    """Cells. The one thing to change here is whether new servers go there."""

    list_display = ("name", "state", "new_servers", "host_count", "server_count", "database", "broker")
    fields = (
        "name", "id", "state", "why", "new_servers", "host_count", "server_count", "database", "broker",
        "created_at",
    )  # fmt: skip
    readonly_fields = fields
    search_fields = ("name", "id")
    ordering = ("name",)
    actions = ("send_new_servers", "send_no_new_servers")

    def has_toggle_permission(self, request: HttpRequest) -> bool:
        """Who may change cells by Django's permissions."""
        return bool(request.user.has_perm("cells.change_cell"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cell]:
        """With its number of hosts."""
        return super().get_queryset(request).annotate(known_hosts=Count("hosts"))

    def join(self, rows: list[Any]) -> None:
        """Whether each answers, and how many servers the global side knows there."""
        gathered = look.ask(rows, _answers)
        living = Count("pk", filter=~Q(queued_for_delete=True))
        counts = dict(
            InstanceMapping.objects.filter(cell__in=rows).values("cell").order_by()
            .annotate(living=living).values_list("cell", "living")
        )  # fmt: skip
        for cell in rows:
            cell.down = gathered.down.get(cell.pk)
            cell.living = counts.get(cell.pk, 0)

    @admin.display(description="State")
    def state(self, cell: Any) -> SafeString:
        """Seen just now."""
        if cell.down is None:
            return look.up_or_down()
        since = look.down_for(cell.pk)
        return format_html("{} {}, for {}", look.up_or_down(cell.down.reason, since), cell.down.reason, since)

    @admin.display(description="Because")
    def why(self, cell: Any) -> str:
        """What a cell that is down means."""
        if cell.down is None:
            return "It answers."
        return (
            f"{cell.down.reason}, for {look.down_for(cell.pk)}. {cell.living} servers show as UNKNOWN; "
            "new servers go elsewhere."
        )

    @admin.display(description="New servers")
    def new_servers(self, cell: Any) -> SafeString:
        """What the operator wants."""
        if cell.is_cell0:
            return look.label("keeps failures", look.GREY)
        return (
            look.label("disabled", look.WARN, "‖") if cell.disabled else look.label("enabled", look.GOOD, "▶")
        )

    @admin.display(description="Hosts", ordering="known_hosts")
    def host_count(self, cell: Any) -> int:
        """Mapped ones."""
        return int(cell.known_hosts)

    @admin.display(description="Servers")
    def server_count(self, cell: Any) -> int:
        """Mapped ones nobody asked to delete."""
        return int(cell.living)

    @admin.display(description="Database")
    def database(self, cell: Cell) -> str:
        """Without the password."""
        return _without_password(cell.database_url)

    @admin.display(description="Broker")
    def broker(self, cell: Cell) -> str:
        """Without the password."""
        return _without_password(cell.broker_url) or "-"

    @admin.action(description="Enable: new servers may go there", permissions=["toggle"])
    def send_new_servers(self, request: HttpRequest, cells: QuerySet[Cell]) -> None:
        """Take new servers again."""
        self._set_disabled(request, cells, disabled=False)

    @admin.action(description="Disable: no new servers go there", permissions=["toggle"])
    def send_no_new_servers(self, request: HttpRequest, cells: QuerySet[Cell]) -> None:
        """Take no new servers; those that are there are not touched."""
        self._set_disabled(request, cells, disabled=True)

    def _set_disabled(self, request: HttpRequest, cells: QuerySet[Cell], *, disabled: bool) -> None:
        chosen = [cell for cell in cells if not cell.is_cell0 and cell.disabled != disabled]
        Cell.objects.filter(pk__in=[cell.pk for cell in chosen]).update(disabled=disabled)
        word = "disabled" if disabled else "enabled"
        if chosen:
            LogEntry.objects.log_actions(str(request.user.pk), chosen, CHANGE, change_message=word)
        messages.success(request, f"{len(chosen)} cells {word}.")


@admin.register(BuildRequest)
class BuildRequestPage(look.ReadOnlyPage):
    """Servers that are asked for and not in a cell yet. The parameters hold secrets and are not shown."""

    list_display = (
        "server_id",
        "server_name",
        "project_id",
        "request_id",
        "waiting",
        "holder",
        "sends",
        "deleting",
    )
    fields = (
        "server_id", "server_name", "project_id", "user_id", "request_id", "created_at", "holder",
        "lease_until", "sends", "sent_at", "deleting",
    )  # fmt: skip
    readonly_fields = fields
    search_fields = ("server_id", "project_id", "request_id")
    ordering = ("created_at",)

    @admin.display(description="Name")
    def server_name(self, request: BuildRequest) -> str:
        """As it was asked for."""
        return str(request.instance.get("display_name", ""))

    @admin.display(description="Waiting", ordering="created_at")
    def waiting(self, request: BuildRequest) -> str:
        """Since it was asked for."""
        return look.age(request.created_at)

    @admin.display(description="Scheduler at work")
    def holder(self, request: BuildRequest) -> str:
        """Whoever has the lease."""
        return request.lease_holder or "-"

    @admin.display(description="Delete asked for", boolean=True)
    def deleting(self, request: BuildRequest) -> bool:
        """It will not be built."""
        return request.delete_requested


def _answers(cell: Cell) -> bool:
    with connections[cell.alias].cursor() as cursor:
        cursor.execute("SELECT 1")
    return True


def _without_password(url: str) -> str:
    """A URL too broken to be taken apart is not shown at all."""
    try:
        return masked(url)
    except ValueError:
        return "(not a valid URL)"
