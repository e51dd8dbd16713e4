"""The page of hosts: what the operator requested, what each host reports, how full it is."""

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
from compute.operations import dispatch

SHOWN = (
    "host", "cell", "administrative_state", "operational_state", "reason", "in_flight", "waiting", "beat", "version",
    "servers", "cpu", "memory", "disk",
)  # fmt: skip
NAMED = 100  # nodes out of use that are listed
OPENED = 3  # rows that unfold by themselves: each then polls every three seconds


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The data a cell has of one of its hosts."""

    service: Service | None
    nodes: list[ComputeNode]
    servers: int
    open_steps: int
    waiting: int


class Operations(TemplateSection):
    """The section a row unfolds to: operations and buttons, loaded when it becomes visible."""

    template_name = "admin/stillwater/host_row.html"

    def get_context_data(self, request: HttpRequest, instance: Any) -> dict[str, Any]:
        """Return the context. A host without a known service gets a reason instead of buttons."""
        service, down = _service(instance), instance.down
        return {
            "url": services.url(instance.cell, service.uuid) if service else "",
            "open": instance.opened,
            "may_change": request.user.has_perm("cells.change_hostmapping"),  # type: ignore[union-attr]
            "why_not": drain_forms.why_not(instance.cell, None, down.reason) if down else "It has no compute service.",
        }


@admin.register(HostMapping)
class HostPage(look.JoinedPage):
    """The page of hosts. A host whose cell does not answer is unknown, not down."""

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
        """Return whether the user has Django's permission to change hosts."""
        return bool(request.user.has_perm("cells.change_hostmapping"))  # type: ignore[union-attr]

    def get_custom_urls(self) -> tuple[Any, ...]:
        """Return the URLs of service pages. They are here because records of cells have no admin pages of their own."""
        return (
            ("services/", "services", services.listing),
            ("services/<str:cell_id>/<str:uuid>/", "service", services.page),
        )

    def join(self, rows: list[Any]) -> None:
        """Add to each host the facts of its cell, with five queries per cell."""
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

    @admin.display(description="Administrative state")
    def administrative_state(self, row: Any) -> SafeString:
        """Return what the operator requested, and when."""
        return _live("administrative-state", row, badges.administrative_state(_service(row)))

    @admin.display(description="Operational state")
    def operational_state(self, row: Any) -> SafeString:
        """Return what the host reports, and since when."""
        return _live("operational-state", row, badges.operational_state(_service(row), row.down))

    @admin.display(description="Heartbeat")
    def beat(self, row: Any) -> str:
        """Return the age of the last heartbeat."""
        service = _service(row)
        return look.age(service.last_seen_up) if service else "-"

    @admin.display(description="Version")
    def version(self, row: Any) -> str:
        """Return the version. Operators look for mixed versions first during an upgrade."""
        service = _service(row)
        return str(service.version) if service else "-"

    @admin.display(description="Servers")
    def servers(self, row: Any) -> str:
        """Return the number of servers that are not deleted."""
        return str(row.facts.servers) if row.facts else "-"

    @admin.display(description="In flight")
    def in_flight(self, row: Any) -> SafeString:
        """Return the number of open steps without queued new requests."""
        return _live("in-flight", row, row.facts.open_steps if row.facts else "-")

    @admin.display(description="Waiting")
    def waiting(self, row: Any) -> SafeString:
        """Return the number of queued new requests."""
        return _live("waiting", row, row.facts.waiting if row.facts else "-")

    @admin.display(description="CPUs")
    def cpu(self, row: Any) -> SafeString | str:
        """Return allocated vCPUs of capacity times ratio."""
        return _amount(row, "vcpus", "cpu_ratio")

    @admin.display(description="Memory")
    def memory(self, row: Any) -> SafeString | str:
        """Return allocated memory of capacity times ratio."""
        return _amount(row, "memory_mb", "ram_ratio", "MiB")

    @admin.display(description="Disk")
    def disk(self, row: Any) -> SafeString | str:
        """Return allocated disk of capacity times ratio."""
        return _amount(row, "disk_gb", "disk_ratio", "GiB")

    @admin.display(description="Nodes")
    def nodes(self, row: Any) -> SafeString | str:
        """Return, for a host of several or bare metal nodes, how many are taken, and why others are out of use."""
        found = row.facts.nodes if row.facts else []
        if len(found) < 2 and not any(node.is_whole for node in found):
            return "-"
        out = [(node.hypervisor_hostname, node.out_of_use) for node in found if node.out_of_use]
        taken = sum(node.vcpus_used > 0 for node in found)
        numbers = f"{counted(len(found), 'node')}, {taken} taken, {len(out)} out of use"
        return format_html("{}{}", numbers, format_html_join("", "<br>{}: {}", out[:NAMED]))

    @admin.display(description="Reason")
    def reason(self, row: Any) -> SafeString | str:
        """Return why the host takes no work, or why its state is unknown."""
        if row.down is not None:
            return f"cell {row.cell.name}: {row.down.reason}, for {look.down_for(row.cell_id)}"
        service = _service(row)
        return _live("reason", row, badges.reason(service) if service else "")


def read_facts(hosts: list[str]) -> dict[str, HostFacts]:
    """Return the facts of hosts of the targeted cell, by name."""
    found = {s.host: s for s in Service.objects.computes(host__in=hosts)}
    nodes: dict[str, list[ComputeNode]] = {}
    for node in ComputeNode.objects.filter(host__in=hosts).defer("cpu_info"):
        nodes.setdefault(node.host, []).append(node)
    servers = _count(Instance.objects.living(host__in=hosts))
    steps = _count(Step.objects.open(host__in=hosts))
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
