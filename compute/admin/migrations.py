"""The page of migrations: from and to which host, their progress, and the buttons abort, force, confirm, revert."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells import scatter
from cells.models import Cell, InstanceMapping
from cloud.errors import ApiError
from compute.actions.confirm_resize import ConfirmResize
from compute.actions.revert_resize import RevertResize
from compute.admin import action_forms, allowed_actions, badges
from compute.migration import control, history
from compute.migration.history import MAY_ABORT_QUEUED, MAY_FORCE, STATUSES
from compute.migration.moves import MoveParams
from compute.models import Instance, InstanceAction, Step
from compute.operations.action import ActionRequest
from compute.servers import lookup

PER_PAGE = 50
HEADERS = (
    "Server", "Type", "Status", "Source", "Destination", "Progress", "Step", "Requested", "Duration", "Requested by",
    "Cell", "",
)  # fmt: skip
CONFIRM_OR_REVERT = {"Confirm": ConfirmResize(), "Revert": RevertResize()}  # a resized server waits for one of these
FINISHED = "finished"
GOING = frozenset({"accepted", "queued", "preparing", "running", "pre-migrating", "migrating", "post-migrating"})
COLOURS = {
    "completed": (look.GOOD, "✓"), "confirmed": (look.GOOD, "✓"), "reverted": (look.GREY, "↩"),
    "done": (look.GOOD, "✓"), FINISHED: (look.WARN, "⇄"), "cancelled": (look.GREY, "×"),
    "failed": (look.BAD, "✖"), "error": (look.BAD, "✖"),
}  # fmt: skip


def view(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Show the migrations of all cells, newest first. A POST is a pressed button."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    may_ask = action_forms.may_ask(request)
    if request.method == "POST":
        if not may_ask:
            raise PermissionDenied
        messages.info(request, _handle_post(request))
        return HttpResponseRedirect(request.get_full_path())
    filters = {name: request.GET.get(name, "") for name in ("status", "kind", "host")}
    try:
        found = history.page(
            _where(filters), PER_PAGE, request.GET.get("after", ""), keys=_keys(filters["kind"]), with_steps=True
        )
    except ApiError as refusal:  # for example: the marker may be in a cell that is down
        messages.warning(request, refusal.message)
        return HttpResponseRedirect(request.path)
    context = model_admin.admin_site.each_context(request) | _context(request, found, filters, may_ask=may_ask)
    return TemplateResponse(request, "admin/stillwater/migrations.html", context)


def _context(request: HttpRequest, found: history.HistoryPage, filters: dict[str, str], *,
             may_ask: bool) -> dict[str, Any]:  # fmt: skip
    cells = {cell.pk: cell for cell in Cell.objects.all()}
    servers = _waiting(found) if may_ask else {}
    rows = [_row(request, cell, row, servers.get(row.server_id), may_ask=may_ask) for cell, row in found.rows]
    full = len(found.rows) == PER_PAGE
    last = MoveParams.load(found.rows[-1][1].params).uuid if full else ""
    asked = {name: value for name, value in filters.items() if value}
    return {
        "title": "Migrations",
        "table": {"headers": HEADERS, "rows": rows},
        "filters": filters,
        "statuses": STATUSES,
        "kinds": sorted(history.types().values()),
        "older": urlencode(asked | {"after": last}) if last else "",
        "newest": urlencode(asked) if request.GET.get("after") else None,
        "down": look.named_down(cells, found.down),
        "live": any(history.status(row) in GOING for _, row in found.rows),
        "now": timezone.now(),
    }


def _where(filters: dict[str, str]) -> Q:
    where = Q(status=filters["status"]) if filters["status"] else Q()
    host = filters["host"].strip()
    return where & (Q(params__source=host) | Q(params__destination=host)) if host else where


def _keys(kind: str) -> list[str]:
    return [key for key, shown in history.types().items() if kind in ("", shown)]


def _waiting(found: history.HistoryPage) -> dict[str, Instance]:
    """Return the servers of migrations that may wait for confirm or revert, with one query per cell."""
    ids: dict[str, list[str]] = {}
    for cell, row in found.rows:
        if history.status(row) == FINISHED:
            ids.setdefault(cell.pk, []).append(row.server_id)
    cells = {cell.pk: cell for cell, _ in found.rows if cell.pk in ids}
    read = scatter.gather(cells.values(), lambda cell: list(Instance.objects.filter(uuid__in=ids[cell.pk])))
    return {instance.uuid: instance for rows in read.answers.values() for instance in rows}


def _row(request: HttpRequest, cell: Cell, row: InstanceAction, server: Instance | None, *, may_ask: bool) -> list[Any]:
    status, params = history.status(row), MoveParams.load(row.params)
    step = max(row.steps.all(), key=lambda one: one.pk, default=None)
    ended = row.finished_at or timezone.now()
    return [
        badges.server_link(row.server_id), history.types()[row.key], _status(status, row), params.source or "-",
        params.destination or params.host or "-", _how_far(row), _step(step),
        f"{look.age(row.started_at)} ago", look.seconds((ended - row.started_at).total_seconds()),
        badges.short(row.user_id or "-"), cell.name,
        _buttons(request, row, server, status) if may_ask else "",
    ]  # fmt: skip


def _status(word: str, row: InstanceAction) -> SafeString:
    colour, sign = COLOURS.get(word, (look.BUSY, "◌"))
    why = row.outcome or ((row.fault or {}).get("message", ""))
    return look.label(word, colour, sign, why)


def _step(step: Step | None) -> Any:
    if step is None:
        return "-"
    where = f" on {step.host}" if step.host else ""
    return format_html('<span title="{}">{}{}, {}</span>', step.details, step.name, where, step.state)


def _how_far(row: InstanceAction) -> Any:
    """Return a progress bar of memory and disk together; its tooltip has both."""
    known = history.progress(row)
    total, left = known.memory_total + known.disk_total, known.memory_left + known.disk_left
    if not total and not history.is_copied(row):
        return "-"
    percent = 100 * (total - left) // total if total else 100
    measured = (("memory", known.memory_total, known.memory_left), ("disk", known.disk_total, known.disk_left))
    parts = [f"{what} {(size - rest) >> 20} of {size >> 20} MiB" for what, size, rest in measured if size]
    return format_html(
        '<span class="whitespace-nowrap" title="{1}"><progress max="100" value="{0}" style="width: 6rem">'
        "{0} %</progress> {0} %</span>",
        percent, ", ".join(parts),
    )  # fmt: skip


def _buttons(request: HttpRequest, row: InstanceAction, server: Instance | None, status: str) -> SafeString | str:
    """Return the buttons that apply now. Confirm and revert are greyed with the reason when not allowed."""
    verbs: list[tuple[str, str, str]] = []
    if history.is_live(row) and status in MAY_ABORT_QUEUED:
        verbs.append(("abort", "Abort", ""))
    if history.is_live(row) and status in MAY_FORCE:
        verbs.append(("force", "Force complete", ""))
    if status == FINISHED and server is not None:
        who = action_forms.caller(request, InstanceMapping(server_id=server.uuid, project_id=server.project_id))
        for text, action in CONFIRM_OR_REVERT.items():
            verbs.append((action.key, text, allowed_actions.why_not(action, server, who)))
    context = {"verbs": verbs, "row": row, "csrf": get_token(request), "path": request.get_full_path()}
    return render_to_string("admin/stillwater/migration_buttons.html", context) if verbs else ""


def _handle_post(request: HttpRequest) -> str:
    """Carry out a pressed button and return a message for the user."""
    verb, server_id = request.POST.get("verb", ""), request.POST.get("server", "")
    mapping = InstanceMapping.objects.select_related("cell").filter(pk=server_id).first()
    if mapping is None:
        return "No such server."
    if verb in (action.key for action in CONFIRM_OR_REVERT.values()):
        return action_forms.carry_out(request, mapping)
    tell = {"abort": control.abort, "force": control.force}.get(verb)
    if tell is None:
        return "Unknown action."
    who = action_forms.caller(request, mapping)
    try:
        with lookup.server(server_id, who) as instance:
            asked = ActionRequest(who, str(getattr(request, "request_id", "")))
            tell(instance, request.POST.get("migration", ""), asked)
    except ApiError as refusal:
        return f"{verb} was refused: {refusal.message}"
    action_forms.trace(request, mapping, f"{verb} of migration {request.POST.get('migration', '')}")
    return f"{verb} was accepted."
