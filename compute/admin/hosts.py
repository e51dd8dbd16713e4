"""The page of hosts: what the operator wants, what is seen, how full they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.utils.safestring import SafeString

from cells import admin_look as look
from cells.models import HostMapping
from compute import journal
from compute.models import ComputeNode, Instance, Service, Step
from compute.models.host import COMPUTE

SHOWN = (
    "host", "cell", "wanted", "seen", "beat", "version", "servers", "in_flight", "cpu", "memory", "disk",
    "reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host's cell says about it."""

    service: Service | None
    nodes: list[ComputeNode]
    servers: int
    open_steps: int


@admin.register(HostMapping)
class HostPage(look.JoinedPage):
    """Hosts. A host whose cell does not answer is unknown, not down."""

    list_display = SHOWN
    fields = (*SHOWN, "created_at")
    readonly_fields = fields
    list_filter = ("cell",)
    list_select_related = ("cell",)
    search_fields = ("host",)
    ordering = ("host",)
    list_fullwidth = True

    def join(self, rows: list[Any]) -> None:
        """Four questions per cell, whatever the number of hosts."""
        cells = {row.cell_id: row.cell for row in rows}
        names: dict[str, list[str]] = {}
        for row in rows:
            names.setdefault(row.cell_id, []).append(row.host)
        gathered = look.ask(cells.values(), lambda cell: read_facts(names[cell.pk]))
        for row in rows:
            row.facts = gathered.answers.get(row.cell_id, {}).get(row.host)
            row.down = gathered.down.get(row.cell_id)

    @admin.display(description="Wanted")
    def wanted(self, row: Any) -> SafeString | str:
        """What the operator said."""
        service = _service(row)
        if service is None:
            return "-"
        return (
            look.label("disabled", look.WARN, "‖")
            if service.disabled
            else look.label("enabled", look.GOOD, "▶")
        )

    @admin.display(description="Seen")
    def seen(self, row: Any) -> SafeString:
        """What its heartbeat says."""
        if row.down is not None:
            return look.label("unknown", look.GREY, "?", f"its cell: {row.down.reason}")
        service = _service(row)
        if service is None:
            return look.label("no service", look.WARN, "!")
        return look.up_or_down(
            "" if service.is_up else "forced down" if service.forced_down else "no heartbeat"
        )

    @admin.display(description="Heartbeat")
    def beat(self, row: Any) -> str:
        """How old it is."""
        service = _service(row)
        return look.age(service.last_seen_up) if service else "-"

    @admin.display(description="Version")
    def version(self, row: Any) -> str:
        """Mixed versions are the first question during an upgrade."""
        service = _service(row)
        return str(service.version) if service else "-"

    @admin.display(description="Servers")
    def servers(self, row: Any) -> str:
        """Living ones."""
        return str(row.facts.servers) if row.facts else "-"

    @admin.display(description="In flight")
    def in_flight(self, row: Any) -> str:
        """Open steps."""
        return str(row.facts.open_steps) if row.facts else "-"

    @admin.display(description="CPUs")
    def cpu(self, row: Any) -> SafeString | str:
        """Sold, of what may be sold."""
        return _amount(row, "vcpus", "cpu_ratio")

    @admin.display(description="Memory")
    def memory(self, row: Any) -> SafeString | str:
        """Sold, of what may be sold."""
        return _amount(row, "memory_mb", "ram_ratio", "MiB")

    @admin.display(description="Disk")
    def disk(self, row: Any) -> SafeString | str:
        """Sold, of what may be sold."""
        return _amount(row, "disk_gb", "disk_ratio", "GiB")

    @admin.display(description="Reason")
    def reason(self, row: Any) -> str:
        """Why it is disabled, or not known."""
        if row.down is not None:
            return f"cell {row.cell.name}: {row.down.reason}, for {look.down_for(row.cell_id)}"
        service = _service(row)
        return (service.disabled_reason or "") if service else ""


def read_facts(hosts: list[str]) -> dict[str, HostFacts]:
    """The targeted cell's hosts, by name."""
    services = {s.host: s for s in Service.objects.filter(binary=COMPUTE, host__in=hosts)}
    nodes: dict[str, list[ComputeNode]] = {}
    for node in ComputeNode.objects.filter(host__in=hosts).defer("cpu_info"):
        nodes.setdefault(node.host, []).append(node)
    servers = _count(Instance.objects.filter(host__in=hosts, deleted=False))
    steps = _count(Step.objects.filter(host__in=hosts, state__in=journal.OPEN))
    return {
        host: HostFacts(services.get(host), nodes.get(host, []), servers.get(host, 0), steps.get(host, 0))
        for host in hosts
    }


def _count(rows: QuerySet[Any]) -> dict[str, int]:
    return dict(rows.order_by().values("host").annotate(number=Count("pk")).values_list("host", "number"))


def _service(row: Any) -> Service | None:
    return row.facts.service if row.facts else None


def _amount(row: Any, column: str, ratio: str, unit: str = "") -> SafeString | str:
    if not row.facts or not row.facts.nodes:
        return "-"
    used = sum(getattr(node, f"{column}_used") for node in row.facts.nodes)
    total = sum(getattr(node, column) * getattr(node, ratio) for node in row.facts.nodes)
    return look.amount(used, total, unit)
