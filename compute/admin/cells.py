"""Admin page of cells: whether each answers, how quickly, and what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells import circuit_breaker, outages, probes
from cells.models import Cell, DeferredDelete, DeferredEvent, InstanceMapping, masked
from cloud.words import counted
from compute.models import Instance, Service


@dataclass(frozen=True, slots=True)
class CellContents:
    """The hosts and servers of a cell, counted by state."""

    hosts: Counter[str]
    servers: dict[str, int]


@admin.register(Cell)
class CellPage(look.JoinedPage):
    """The page of cells. It changes one thing: whether a cell gets new servers."""

    list_display = (
        "name", "state", "new_servers", "host_states", "server_states", "kept", "database", "broker", "lately",
    )  # fmt: skip
    list_fullwidth = True
    fields = (
        "name", "id", "state", "why", "breaker", "kept", "new_servers", "host_states", "server_states", "database",
        "database_url_shown", "broker", "broker_url_shown", "last_hour", "created_at",
    )  # fmt: skip
    readonly_fields = fields
    search_fields = ("name", "id")
    ordering = ("name",)
    actions = ("enable_cells", "disable_cells")

    def has_toggle_permission(self, request: HttpRequest) -> bool:
        """Return whether the user has Django's permission to change cells."""
        return bool(request.user.has_perm("cells.change_cell"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cell]:
        """Return cells with their number of hosts."""
        return super().get_queryset(request).annotate(known_hosts=Count("hosts"))

    def join(self, rows: list[Any]) -> None:
        """Add to each cell the probe results, its contents, and the records of the global database."""
        said, incidents = probes.ask_and_read(rows, _inside), outages.of([cell.pk for cell in rows])
        living = _by_cell(InstanceMapping.objects.filter(~Q(queued_for_delete=True)))
        deletes, events = _by_cell(DeferredDelete.objects.all()), _by_cell(DeferredEvent.objects.all())
        for cell in rows:
            cell.said, cell.living = said[cell.pk], living.get(cell.pk, 0)
            cell.inside, cell.trouble = cell.said.read, cell.said.database.trouble
            cell.late = (deletes.get(cell.pk, 0), events.get(cell.pk, 0))
            cell.incidents = incidents[cell.pk]

    @admin.display(description="State")
    def state(self, cell: Any) -> SafeString:
        """Return whether the cell answered just now."""
        if not cell.trouble:
            return look.up_or_down()
        since = look.down_for(cell.pk)
        return format_html("{} {}, for {}", look.up_or_down(cell.trouble, since), cell.trouble, since)

    @admin.display(description="Details")
    def why(self, cell: Any) -> str:
        """Return what the state means for servers."""
        if not cell.trouble:
            return "Database and tables answer."
        unknown = counted(cell.living, "server shows", "servers show")
        return f"{cell.trouble}, for {look.down_for(cell.pk)}. {unknown} as UNKNOWN; it gets no new servers."

    @admin.display(description="New servers")
    def new_servers(self, cell: Any) -> SafeString:
        """Return whether the operator lets the cell get new servers."""
        if cell.is_cell0:
            return look.label("failed builds only", look.GREY)
        return (
            look.label("disabled", look.WARN, "‖") if cell.disabled else look.label("enabled", look.GOOD, "▶")
        )

    @admin.display(description="Circuit breaker")
    def breaker(self, cell: Any) -> str:
        """Return the state of this process's circuit breaker for the cell."""
        outage = circuit_breaker.outage(cell.pk)
        if outage is None:
            return "closed: requests query the cell"
        return (
            f"open since {datetime.fromtimestamp(outage.since, UTC):%F %T} UTC ({outage.reason}): not queried. "
            f"Probe {outage.looks} runs in {outage.seconds_until_look:.1f} s."
            + (f" The cell went down {outage.times} times." if outage.times > 1 else "")
        )

    @admin.display(description="Hosts", ordering="known_hosts")
    def host_states(self, cell: Any) -> str:
        """Return hosts by state; for a down cell, how many are mapped to it."""
        if cell.inside is None:
            return f"{cell.known_hosts} unknown" if cell.known_hosts else "-"
        return _counted(cell.inside.hosts) or "-"

    @admin.display(description="Servers")
    def server_states(self, cell: Any) -> str:
        """Return servers by state; for a down cell, how many mapped servers are not queued for deletion."""
        if cell.inside is None:
            return f"{cell.living:,} UNKNOWN"
        return _counted(cell.inside.servers) or "-"

    @admin.display(description="Database response time")
    def database(self, cell: Any) -> str:
        """Return how long the database took to answer just now, or why it did not."""
        return str(cell.said.database.text)

    @admin.display(description="Broker response time")
    def broker(self, cell: Any) -> str:
        """Return how long the broker took to answer just now, or why it did not."""
        return str(cell.said.broker.text)

    @admin.display(description="Database URL")
    def database_url_shown(self, cell: Cell) -> str:
        """Return the database URL without its password."""
        return _without_password(cell.database_url)

    @admin.display(description="Broker URL")
    def broker_url_shown(self, cell: Cell) -> str:
        """Return the broker URL without its password."""
        return _without_password(cell.broker_url) or "-"

    @admin.display(description="Deferred")
    def kept(self, cell: Any) -> str:
        """Return how many deletes and external events are deferred until the cell is back."""
        deletes, events = cell.late
        waits = [(deletes, "delete"), (events, "external event")]
        return ", ".join(f"{count:,} {word}{'s' * (count > 1)}" for count, word in waits if count) or "-"

    @admin.display(description="Down in the last hour")
    def lately(self, cell: Any) -> str:
        """Return how often and how long the cell was down, as any process saw it."""
        if not cell.incidents:
            return "-"
        times = len(cell.incidents)
        return f"{times} time{'s' * (times > 1)}, {look.seconds(sum(one.seconds for one in cell.incidents))}"

    @admin.display(description="Outages in the last hour, as reported by all processes")
    def last_hour(self, cell: Any) -> str | SafeString:
        """Return each incident: start, end, reasons, and the processes that saw it."""
        return format_html_join("", "<div>{}</div>", map(_incident_line, cell.incidents)) or "None."

    @admin.action(description="Enable for new servers", permissions=["toggle"])
    def enable_cells(self, request: HttpRequest, cells: QuerySet[Cell]) -> None:
        """Enable the cell for new servers."""
        self._set_disabled(request, cells, disabled=False)

    @admin.action(description="Disable for new servers", permissions=["toggle"])
    def disable_cells(self, request: HttpRequest, cells: QuerySet[Cell]) -> None:
        """Disable the cell for new servers; its servers are not touched."""
        self._set_disabled(request, cells, disabled=True)

    def _set_disabled(self, request: HttpRequest, cells: QuerySet[Cell], *, disabled: bool) -> None:
        chosen = [cell for cell in cells if not cell.is_cell0 and cell.disabled != disabled]
        Cell.objects.filter(pk__in=[cell.pk for cell in chosen]).update(disabled=disabled)
        word = "disabled" if disabled else "enabled"
        if chosen:
            LogEntry.objects.log_actions(str(request.user.pk), chosen, CHANGE, change_message=word)
        messages.success(request, f"{counted(len(chosen), 'cell')} {word}.")


def _inside(_: Cell) -> CellContents:
    hosts = Counter(_host_state(service) for service in Service.objects.computes())
    servers = Instance.objects.living().values_list("vm_state").annotate(count=Count("id"))
    return CellContents(hosts, dict(servers.order_by("vm_state")))


def _counted(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))


def _by_cell(rows: QuerySet[Any]) -> dict[str, int]:
    return dict(rows.values("cell").order_by().annotate(n=Count("pk")).values_list("cell", "n"))


def _incident_line(one: outages.Incident) -> tuple[SafeString]:
    took, first = look.seconds(one.seconds), one.seen_by[0]
    if one.is_open:
        end = f"down for {took}"
    else:
        end = f"down for {took}, recovered" if one.is_sure else f"down for at least {took}; the process stopped"
    more = f" and {len(one.seen_by) - 1} more" if len(one.seen_by) > 1 else ""
    who = format_html('<span title="{}">{}{}</span>', "\n".join(one.seen_by), first, more)
    return (format_html("{} UTC: {} ({}). Reported by {}.", f"{one.began_at:%T}", end, ", ".join(one.reasons), who),)


def _host_state(service: Service) -> str:
    return (service.drain_state or "up") if service.is_up else "down"


def _without_password(url: str) -> str:
    """Return a URL without its password, or a note instead of a URL that cannot be parsed."""
    try:
        return masked(url)
    except ValueError:
        return "(not a valid URL)"
