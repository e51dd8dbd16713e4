"""The pages of services: every process of every cell, what the operator requested of it, what holds up its drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from cells import admin_widgets as look
from cells import scatter
from cells.models import Cell, HostMapping
from compute.admin import badges, drain_forms, wait_reasons
from compute.hosts import drain, drain_moves
from compute.hosts.drain_moves import UNDER_WAY, DrainMove, DrainMoves
from compute.models import Service
from compute.models.host import COMPUTE

HEADERS = (
    "Service", "Cell", "Administrative state", "Operational state", "Heartbeat", "Version", "In progress", "Waiting",
    "Deadline", "Reason",
)  # fmt: skip
OPERATION_HEADERS = ("Operation", "Server", "State", "Host", "Age", "Waits for", "Time left", "Blocker", "Request")
MOVE_HEADERS = ("Server", "State", "Source", "Destination", "Progress, %", "Details", "Attempts", "Request")
PANEL = "admin/stillwater/service_panel.html"


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The data a cell has of one of its services."""

    service: Service
    operations: list[drain.OpenOperation]
    waiting: int
    moves: DrainMoves


def listing(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Show every service, with two queries per cell."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    cells = {cell.pk: cell for cell in Cell.objects.order_by("name")}
    gathered = scatter.gather(cells.values(), lambda _: (_services(), drain.waiting_by_host()))
    rows = [
        _row(cells[pk], service, waiting.get(service.host, 0))
        for pk, (services, waiting) in gathered.answers.items() for service in services
    ]  # fmt: skip
    context = model_admin.admin_site.each_context(request) | {
        "title": "Services",
        "table": {"headers": HEADERS, "rows": rows},
        "down": look.named_down(cells, gathered.down),
        "now": timezone.now(),
    }
    return TemplateResponse(request, "admin/stillwater/services.html", context)


def page(request: HttpRequest, model_admin: Any, cell_id: str, uuid: str) -> HttpResponse:
    """Show one service with its buttons; htmx gets only the panel. A POST is a pressed button."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    may_change = model_admin.has_drain_permission(request)
    if request.method == "POST" and not may_change:
        raise PermissionDenied
    cell = get_object_or_404(Cell, pk=cell_id)
    notice = _handle_post(request, cell, uuid) if request.method == "POST" else ""
    if request.method == "POST" and "HX-Request" not in request.headers:
        messages.info(request, notice)
        return HttpResponseRedirect(request.path)
    context = panel(request, cell, uuid, may_change=may_change) | {"notice": notice}
    if "HX-Request" in request.headers:
        return TemplateResponse(request, PANEL, context)
    context |= model_admin.admin_site.each_context(request)
    return TemplateResponse(request, "admin/stillwater/service.html", context)


def panel(request: HttpRequest, cell: Cell, uuid: str, *, may_change: bool) -> dict[str, Any]:
    """Return the context of the panel. Raises Http404 when a cell that answers has no such service."""
    gathered = scatter.gather([cell], lambda _: _read(uuid))
    down, known = gathered.down.get(cell.pk), gathered.answers.get(cell.pk)
    if known is None and down is None:
        raise Http404(f"Cell {cell} has no service {uuid}.")
    service = known.service if known else None
    moves = known.moves if known else DrainMoves()
    operations = (known.operations if known else []) + (wait_reasons.placing(service) if service else [])
    return {
        "title": "Service",
        "cell": cell,
        "uuid": uuid,
        "url": url(cell, uuid),
        "in_row": "row" in request.GET,
        "service": service,
        "administrative_state": badges.administrative_state(service),
        "operational_state": badges.operational_state(service, down),
        "row": _row_of(known) if known and "row" in request.GET else [],
        "facts": _facts(service, known.waiting) if known and service else [],
        "live": service is not None and _is_changing(service),
        "moves": moves,
        "move_table": {"headers": MOVE_HEADERS, "rows": [_move(one) for one in (*moves.under_way, *moves.blocked)]},
        "table": {"headers": OPERATION_HEADERS, "rows": [_operation(one) for one in operations]},
        "may_change": may_change,
        "why_not": drain_forms.why_not(cell, service, down.reason if down else ""),
        "drain_form": drain_forms.drain_form(service, f"drain-{uuid}-%s"),
        "return_form": drain_forms.ReturnForm(auto_id=f"return-{uuid}-%s"),
        "extend_form": drain_forms.ExtendForm(auto_id=f"extend-{uuid}-%s"),
        "now": timezone.now(),
    }


def url(cell: Cell, uuid: str) -> str:
    """Return the URL of a service's page."""
    return reverse("admin:service", args=(cell.pk, uuid))


def live(name: str, uuid: str, value: Any, *, again: bool = False) -> SafeString:
    """Return a value in a host's row that the panel below the row updates.

    `again`: the element that the panel sends to replace it (htmx: out-of-band swap).
    """
    swap = mark_safe(' hx-swap-oob="true"') if again else ""
    return format_html('<span id="{}-{}"{}>{}</span>', name, uuid, swap, value)


def _row_of(known: ServiceState) -> list[SafeString]:
    service = known.service
    values = {
        "administrative-state": badges.administrative_state(service),
        "operational-state": badges.operational_state(service), "waiting": known.waiting,
        "in-flight": sum(one.state != "elsewhere" for one in known.operations), "reason": badges.reason(service),
    }  # fmt: skip
    return [live(name, service.uuid, value, again=True) for name, value in values.items()]


def _services() -> list[Service]:
    return list(Service.objects.order_by("binary", "host"))


def _read(uuid: str) -> ServiceState | None:
    """Return a service of the targeted cell, in at most eight queries."""
    service = Service.objects.filter(uuid=uuid).first()
    if service is None:
        return None
    waiting = drain.waiting(service.host) if service.binary == COMPUTE else 0
    moves = drain_moves.read(service.host) if service.binary == COMPUTE else DrainMoves()
    return ServiceState(service, drain.operations(service), waiting, moves)


def _handle_post(request: HttpRequest, cell: Cell, uuid: str) -> str:
    """Carry out a pressed button, write it to the admin log, and return a message for the user."""
    gathered = scatter.gather([cell], lambda _: Service.objects.filter(uuid=uuid).first())
    service = gathered.answers.get(cell.pk)
    if service is None:
        return drain_forms.nothing_changed(cell, gathered.down.get(cell.pk))
    said, done = drain_forms.carry_out(cell, service, request.POST, by=f"admin:{request.user.get_username()}")
    if done:
        host = HostMapping.objects.filter(host=service.host) if service.binary == COMPUTE else None
        # A conductor or scheduler has no global record: its log entry is at its cell.
        subject = list(host) if host else [cell]
        LogEntry.objects.log_actions(str(request.user.pk), subject, CHANGE, change_message=f"{service}: {said}")
    return said


def _row(cell: Cell, service: Service, waiting: int) -> list[Any]:
    name = format_html('<a class="{}" href="{}">{}</a>', badges.LINK, url(cell, service.uuid), service)
    return [
        name, cell.name, badges.administrative_state(service), badges.operational_state(service),
        look.age(service.last_seen_up),
        service.version, service.in_progress, waiting if service.binary == COMPUTE else "-",
        badges.deadline(service), badges.reason(service) or "-",
    ]  # fmt: skip


def _is_changing(service: Service) -> bool:
    """Return whether a drain is not finished, its undrain is not yet read by the process, or servers come back."""
    if service.is_returning:
        return True
    settled = service.drain_wanted and service.drain_state == "drained"
    return bool(service.drain_state) and service.ended_at is None and not settled


def _facts(service: Service, waiting: int) -> list[tuple[str, Any]]:
    """Return (title, text) of what the panel says about a drain."""
    facts: list[tuple[str, Any]] = []
    if service.drain_state and not service.drain_by:
        facts = [("Requested by", "withdrawn: the service accepts work again at its next heartbeat")]
    elif service.drain_state:
        end = "then the process exits" if service.drain_then_exit else "then it stays drained until it is undrained"
        facts = [
            ("Requested by", f"{service.drain_by}, {look.age(service.drain_asked_at)} ago"),
            ("Reason", service.drain_reason or "no reason given"),
            ("Deadline", f"{badges.deadline(service)}, {end}"),
        ]
    if service.binary == COMPUTE:
        why = " (not begun; they do not delay the drain)" if waiting else ""
        facts.append(("Waiting requests", f"{waiting or 'none'}{why}"))
    return facts


def _move(one: DrainMove) -> list[Any]:
    percent = one.percent if one.state in UNDER_WAY else "-"
    why = format_html("{} {}", look.label("!", look.WARN), one.why) if one.is_blocked else one.why or "-"
    return [
        badges.server_link(one.server_id), badges.state(one.state), one.at, one.to or "-", percent, why, one.tries,
        badges.short(one.request_id) if one.request_id else "-",
    ]  # fmt: skip


def _operation(one: drain.OpenOperation) -> list[Any]:
    left = one.seconds_left
    return [
        badges.what(one.action, one.step), badges.server_link(one.server_id), badges.state(one.state),
        one.host or "any conductor", look.age(one.since), one.waits_for,
        "-" if left is None else look.seconds(left),
        format_html("{} {}", look.label("!", look.WARN), one.blocker) if one.blocker else "-",
        badges.short(one.request_id),
    ]  # fmt: skip
