"""The page of actions in progress: every open step of every cell, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from cells import admin_look as look
from cells.models import Cell
from compute import journal
from compute.admin import signs
from compute.models import InstanceAction, Step

MOST = 500  # open steps read per cell, oldest first
ENDED = 20  # actions that ended last, all cells together
PER_PAGE = 100
HIDDEN = ("traceback", "action__params")
HEADERS = (
    "Action", "Step", "Server", "Cell", "Host", "State", "Queued", "Running", "Tries", "Who", "Request",
    "Details",
)  # fmt: skip
ENDED_HEADERS = ("Action", "Server", "Cell", "Ended", "Result", "Request", "How")


@dataclass(frozen=True, slots=True)
class Read:
    """What one cell says."""

    open: list[Step]
    ended: list[InstanceAction]


def view(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Two questions per cell."""
    now = timezone.now()
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    cells = {cell.pk: cell for cell in Cell.objects.order_by("name")}
    gathered = look.ask(cells.values(), lambda _: Read(open_steps(MOST), _ended()))
    names = {pk: cell.name for pk, cell in cells.items()}
    steps = oldest({names[pk]: read.open for pk, read in gathered.answers.items()})
    ended = [(names[pk], action) for pk, read in gathered.answers.items() for action in read.ended]
    ended.sort(key=lambda pair: pair[1].finished_at or now, reverse=True)
    page = look.page_of(request, steps, PER_PAGE)
    context = model_admin.admin_site.each_context(request) | {
        "title": "Actions in progress",
        "page": page,
        "table": table(page.object_list),
        "ended": {"headers": ENDED_HEADERS, "rows": [_ended_row(*pair) for pair in ended[:ENDED]]},
        "capped": [names[pk] for pk, read in gathered.answers.items() if len(read.open) >= MOST],
        "most": MOST,
        "down": [(names[pk], down.reason, look.down_for(pk)) for pk, down in gathered.down.items()],
        "now": now,
    }
    return TemplateResponse(request, "admin/stillwater/progress.html", context)


def open_steps(limit: int) -> list[Step]:
    """Of the targeted cell, the oldest first, with their actions but without what may be secret."""
    steps = Step.objects.filter(state__in=journal.OPEN).select_related("action").defer(*HIDDEN)
    return list(steps.order_by("queued_at", "pk")[:limit])


def oldest(by_cell: dict[str, list[Step]]) -> list[tuple[str, Step]]:
    """All cells' steps with the names of their cells, the oldest first."""
    found = [(cell, step) for cell, steps in by_cell.items() for step in steps]
    return sorted(found, key=lambda pair: pair[1].queued_at)


def table(steps: Any) -> dict[str, Any]:
    """The form unfold's table takes."""
    return {"headers": HEADERS, "rows": [_row(cell, step) for cell, step in steps]}


def _row(cell: str, step: Step) -> list[Any]:
    return [
        step.action.action, step.name, signs.server_link(step.server_id), cell, step.host or "conductor",
        signs.step_state(step), look.age(step.queued_at), look.age(step.started_at), step.attempts,
        step.action.user_id or "-", step.action.request_id, step.details or "-",
    ]  # fmt: skip


def _ended() -> list[InstanceAction]:
    rows = InstanceAction.objects.filter(finished_at__isnull=False).defer("params")
    return list(rows.order_by("-pk")[:ENDED])


def _ended_row(cell: str, action: InstanceAction) -> list[Any]:
    failed = action.message is not None
    result = look.label("failed", look.BAD, "✖") if failed else look.label("done", look.GOOD, "✓")
    return [
        action.action, signs.server_link(action.server_id), cell, f"{look.age(action.finished_at)} ago",
        result, action.request_id, action.outcome or "-",
    ]  # fmt: skip
