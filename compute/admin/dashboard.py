"""The overview page: cells, hosts and servers in numbers, and the oldest open actions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.db.models import Count
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from cells import admin_widgets as look
from cells import scatter
from cells.models import BuildRequest, Cell, HostMapping, InstanceMapping
from cloud.words import counted
from compute import state
from compute.admin import badges, open_operations
from compute.models import Instance, Service
from compute.models.host import COMPUTE

OLDEST = 10
NAMED = 10  # draining hosts listed
CELL_HEADERS = ("Cell", "State", "New servers", "Hosts up", "Servers", "Details")


@dataclass(frozen=True, slots=True)
class CloudTotals:
    """The numbers of one cell."""

    statuses: Counter[str]
    open: open_operations.OpenOperations

    @property
    def hosts(self) -> list[Service]:
        """Its compute services."""
        return [one for one in self.open.services if one.binary == COMPUTE]

    @property
    def hosts_up(self) -> int:
        """How many compute services are up."""
        return sum(one.is_up for one in self.hosts)


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the index page, with three queries per cell and four of the global database.

    Called by unfold.
    """
    cells = list(Cell.objects.order_by("name"))
    gathered = scatter.gather(cells, _read)
    mapped = _mapped_servers()
    unknown = {cell.pk: mapped.get(cell.pk, 0) for cell in cells if cell.pk in gathered.down}
    steps = open_operations.oldest(
        {cell.name: gathered.answers[cell.pk].open for cell in cells if cell.pk in gathered.answers}
    )[:OLDEST]
    return context | {
        "title": "Overview",
        "cards": [
            _cells_card(cells, gathered),
            _hosts_card(gathered),
            _servers_card(gathered, sum(unknown.values())),
            _work_card(steps),
        ],
        "cells_table": {
            "headers": CELL_HEADERS,
            "rows": [_cell_row(cell, gathered, unknown) for cell in cells],
        },
        "steps_table": open_operations.table(steps),
        "progress_url": reverse("admin:actions_in_progress"),
        "now": timezone.now(),
    }


def _read(_: Cell) -> CloudTotals:
    statuses: Counter[str] = Counter()
    states = Instance.objects.living().order_by().values("vm_state", "task_state")
    for vm_state, task_state, number in states.annotate(n=Count("pk")).values_list(
        "vm_state", "task_state", "n"
    ):
        statuses[state.status(vm_state, task_state)] += number
    return CloudTotals(statuses, open_operations.read(OLDEST))


def _mapped_servers() -> dict[str | None, int]:
    living = InstanceMapping.objects.exclude(queued_for_delete=True)
    return dict(living.order_by().values("cell").annotate(n=Count("pk")).values_list("cell", "n"))


def _cells_card(cells: list[Cell], gathered: scatter.CellAnswers[CloudTotals]) -> dict[str, Any]:
    down = len(gathered.down)
    lines = [look.label(f"{len(cells) - down} up", look.GOOD, "▲")]
    if down:
        lines.append(look.label(f"{down} down", look.BAD, "▼"))
    return {
        "title": "Cells",
        "number": len(cells),
        "lines": lines,
        "url": reverse("admin:cells_cell_changelist"),
    }


def _hosts_card(gathered: scatter.CellAnswers[CloudTotals]) -> dict[str, Any]:
    up = sum(numbers.hosts_up for numbers in gathered.values())
    down = sum(len(numbers.hosts) for numbers in gathered.values()) - up
    unknown = HostMapping.objects.filter(cell__in=list(gathered.down)).count()
    lines = [look.label(f"{up} up", look.GOOD, "▲")]
    if down:
        lines.append(look.label(f"{down} down", look.BAD, "▼"))
    if unknown:
        lines.append(look.label(f"{unknown} unknown", look.GREY, "?"))
    lines += _draining([one for numbers in gathered.values() for one in numbers.hosts])
    url = reverse("admin:cells_hostmapping_changelist")
    return {"title": "Hosts", "number": up + down + unknown, "lines": lines, "url": url}


def _draining(hosts: list[Service]) -> list[Any]:
    """Return a badge for each draining host: its name, and how many operations are left."""
    found = sorted((one for one in hosts if one.drain_state and one.is_up), key=lambda one: one.host)
    lines = [
        format_html("{} {}", look.label(one.drain_state, look.WARN, "▽", badges.reason(one)), _left(one))
        for one in found[:NAMED]
    ]
    more = len(found) - NAMED
    return [*lines, look.label(f"{more} more draining", look.WARN, "▽")] if more > 0 else lines


def _left(service: Service) -> str:
    return f"{service.host} ({service.in_progress} left)" if service.in_progress else service.host


def _servers_card(gathered: scatter.CellAnswers[CloudTotals], unknown: int) -> dict[str, Any]:
    statuses: Counter[str] = sum((numbers.statuses for numbers in gathered.values()), Counter())
    waiting = BuildRequest.objects.count()
    lines = [_status_line(word, number) for word, number in statuses.most_common()]
    if unknown:
        lines.append(_status_line("UNKNOWN", unknown))
    if waiting:
        lines.append(look.label(f"{waiting} not yet scheduled", look.BUSY, "…"))
    url = reverse("admin:cells_instancemapping_changelist")
    return {"title": "Servers", "number": sum(statuses.values()) + unknown, "lines": lines, "url": url}


def _status_line(word: str, number: int) -> Any:
    colour, sign = badges.STATUS.get(word, (look.GREY, "•"))
    return look.label(f"{number} {word}", colour, sign)


def _work_card(steps: list[open_operations.StepRow]) -> dict[str, Any]:
    url = reverse("admin:actions_in_progress")
    if not steps:
        return {"title": "Oldest open action", "number": "none", "lines": [], "url": url}
    cell, step = steps[0].cell, steps[0].step
    lines = [badges.step_state(step), look.label(f"{step.action.action} in {cell}")]
    return {"title": "Oldest open action", "number": look.age(step.queued_at), "lines": lines, "url": url}


def _cell_row(cell: Cell, gathered: scatter.CellAnswers[CloudTotals], unknown: dict[str, int]) -> list[Any]:
    new_servers = "-" if cell.is_cell0 else "disabled" if cell.disabled else "enabled"
    if cell.pk in gathered.down:
        reason, since = gathered.down[cell.pk].reason, look.down_for(cell.pk)
        shown = counted(unknown[cell.pk], "server shows", "servers show")
        details = f"{reason}, for {since}. {shown} as UNKNOWN; guests probably keep running. It gets no new servers."
        return [cell.name, look.up_or_down(reason, since), new_servers, "?", unknown[cell.pk], details]
    numbers = gathered.answers[cell.pk]
    hosts = f"{numbers.hosts_up} of {len(numbers.hosts)}"
    meaning = "servers that could not be scheduled" if cell.is_cell0 else ""
    return [cell.name, look.up_or_down(), new_servers, hosts, sum(numbers.statuses.values()), meaning]
