"""The page of hosts: what the operator wants, what is seen, how full they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.sections import TemplateSection

from cells import admin_widgets as look
from cells import scatter
from cells.models import HostMapping
from cloud.words import counted
from compute.admin import badges, drain_forms, services
from compute.models import ComputeNode, Instance, Service, Step
from compute.models.host import COMPUTE
from compute.operations import dispatch, journal

SHOWN = (
    "host", "cell", "wanted", "seen", "reason", "in_flight", "waiting", "beat", "version", "servers", "cpu",
    "memory", "disk",
)  # fmt: skip
NAMED = 100  # nodes out of use
OPENED = 3  # rows that unfold by themselves, as each then asks every three seconds


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host's cell says about it."""

    service: Service | None
    nodes: list[ComputeNode]
    servers: int
    open_steps: int
    waiting: int


class Operations(TemplateSection):
    """What a row unfolds to: its operations and buttons, read when somebody looks."""

    template_name = "admin/stillwater/host_row.html"

    def get_context_data(self, request: HttpRequest, instance: Any) -> dict[str, Any]:
        """A host whose service is not known has buttons too: they say why they cannot be pressed."""
        service, down = _service(instance), instance.down
        return {
            "url": services.url(instance.cell, service.uuid) if service else "",
            "open": instance.opened,
            "may_change": request.user.has_perm("cells.change_hostmapping"),  # type: ignore[union-attr]
            "why_not": drain_forms.why_not(instance.cell, None, down.reason) if down else "It has no service.",
        }


@admin.register(HostMapping)
class HostPage(look.JoinedPage):
    """Hosts. A host whose cell does not answer is unknown, not down."""

    list_display = SHOWN
    fields = (*SHOWN, "nodes", "created_at")
    readonly_fields = fields
    list_filter = ("cell",)
    list_select_related = ("cell",)
    search_fields = ("host",)
    ordering = ("host",)
    list_fullwidth = True
    list_sections = (Operations,)
    list_before_template = "admin/stillwater/down_hosts.html"
    change_form_after_template = "admin/stillwater/host_after.html"

    def has_drain_permission(self, request: HttpRequest) -> bool:
        """Who may change hosts by Django's permissions."""
        return bool(request.user.has_perm("cells.change_hostmapping"))  # type: ignore[union-attr]

    def get_custom_urls(self) -> tuple[Any, ...]:
        """Services are a cell's records, which have no pages of their own: theirs hang here."""
        return (
            ("services/", "services", services.listing),
            ("services/<str:cell_id>/<str:uuid>/", "service", services.page),
        )

    def join(self, rows: list[Any]) -> None:
        """Five questions per cell, whatever the number of hosts."""
        cells = {row.cell_id: row.cell for row in rows}
        names: dict[str, list[str]] = {}
        for row in rows:
            names.setdefault(row.cell_id, []).append(row.host)
        gathered = scatter.gather(cells.values(), lambda cell: read_facts(names[cell.pk]))
        for row in rows:
            row.facts = gathered.answers.get(row.cell_id, {}).get(row.host)
            row.down = gathered.down.get(row.cell_id)
        draining = [row for row in rows if (found := _service(row)) and _is_busy(found)]
        for row in rows:
            row.opened = row in draining and len(draining) <= OPENED

    @admin.display(description="Wanted")
    def wanted(self, row: Any) -> SafeString:
        """What the operator said, and when."""
        return _live("wanted", row, badges.wanted(_service(row)))

    @admin.display(description="Seen")
    def seen(self, row: Any) -> SafeString:
        """What it says itself, and since when."""
        return _live("seen", row, badges.seen(_service(row), row.down))

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
    def in_flight(self, row: Any) -> SafeString:
        """Open steps that are begun, or that begun work still needs."""
        return _live("in-flight", row, row.facts.open_steps if row.facts else "-")

    @admin.display(description="Waiting")
    def waiting(self, row: Any) -> SafeString:
        """Requests nobody has begun."""
        return _live("waiting", row, row.facts.waiting if row.facts else "-")

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

    @admin.display(description="Nodes")
    def nodes(self, row: Any) -> SafeString | str:
        """Of a host that serves several, or machines: how many are somebody's, and why others are not in use."""
        found = row.facts.nodes if row.facts else []
        if len(found) < 2 and not any(node.is_whole for node in found):
            return "-"
        out = [(node.hypervisor_hostname, node.out_of_use) for node in found if node.out_of_use]
        taken = sum(node.vcpus_used > 0 for node in found)
        numbers = f"{counted(len(found), 'node')}, {taken} taken, {len(out)} out of use"
        return format_html("{}{}", numbers, format_html_join("", "<br>{}: {}", out[:NAMED]))

    @admin.display(description="Reason")
    def reason(self, row: Any) -> SafeString | str:
        """Why it takes no work, or is not known."""
        if row.down is not None:
            return f"cell {row.cell.name}: {row.down.reason}, for {look.down_for(row.cell_id)}"
        service = _service(row)
        return _live("reason", row, badges.reason(service) if service else "")


def read_facts(hosts: list[str]) -> dict[str, HostFacts]:
    """The targeted cell's hosts, by name."""
    found = {s.host: s for s in Service.objects.filter(binary=COMPUTE, host__in=hosts)}
    nodes: dict[str, list[ComputeNode]] = {}
    for node in ComputeNode.objects.filter(host__in=hosts).defer("cpu_info"):
        nodes.setdefault(node.host, []).append(node)
    servers = _count(Instance.objects.filter(host__in=hosts, deleted=False))
    steps = _count(Step.objects.filter(host__in=hosts, state__in=journal.OPEN))
    waiting = _count(Step.objects.filter(host__in=hosts, state=Step.State.QUEUED, queue=dispatch.REQUESTS))
    return {
        host: HostFacts(
            found.get(host), nodes.get(host, []), servers.get(host, 0),
            steps.get(host, 0) - waiting.get(host, 0), waiting.get(host, 0),
        )
        for host in hosts
    }  # fmt: skip


def _count(rows: QuerySet[Any]) -> dict[str, int]:
    return dict(rows.order_by().values("host").annotate(number=Count("pk")).values_list("host", "number"))


def _service(row: Any) -> Service | None:
    return row.facts.service if row.facts else None


def _is_busy(service: Service) -> bool:
    return service.drain_state in ("emptying", "draining") or service.is_returning


def _live(name: str, row: Any, value: Any) -> SafeString:
    service = _service(row)
    return services.live(name, service.uuid if service else f"host-{row.pk}", value)


def _amount(row: Any, column: str, ratio: str, unit: str = "") -> SafeString | str:
    if not row.facts or not row.facts.nodes:
        return "-"
    used = sum(getattr(node, f"{column}_used") for node in row.facts.nodes)
    total = sum(getattr(node, column) * getattr(node, ratio) for node in row.facts.nodes)
    return look.amount(used, total, unit)
