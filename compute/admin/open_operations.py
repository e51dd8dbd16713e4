"""The page of actions in progress: every open step of every cell and every server to be placed, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells import scatter
from cells.models import BuildRequest, Cell
from compute.admin import badges, wait_reasons
from compute.builds.leases import LEASE
from compute.models import InstanceAction, Service, Step

MOST = 500  # open steps read per cell, oldest first
ENDED = 20  # newest ended actions shown, of all cells together
PER_PAGE = 100
HIDDEN = ("traceback", "action__params")
HEADERS = (
    "Action", "Server", "Cell", "Host", "State", "Requested", "Last change", "Waits for", "Attempts", "Requested by",
    "Request", "Details",
)  # fmt: skip
UNPLACED_HEADERS = ("Server", "State", "Requested", "Last change", "Waits for", "Sends", "Request")
ENDED_HEADERS = ("Action", "Server", "Cell", "Finished", "Result", "Request", "Details")


@dataclass(frozen=True, slots=True)
class OpenOperations:
    """The open steps of one cell, and its services."""

    steps: list[Step]
    services: list[Service]


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step, its cell, and what it waits for."""

    cell: str
    step: Step
    waits: SafeString | str


def view(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Show the page, with three queries per cell and two of the global database."""
    now = timezone.now()
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    cells = {cell.pk: cell for cell in Cell.objects.order_by("name")}
    gathered = scatter.gather(cells.values(), lambda _: (read(MOST), _ended()))
    names = {pk: cell.name for pk, cell in cells.items()}
    lines = oldest({names[pk]: found for pk, (found, _) in gathered.answers.items()})
    ended = [(names[pk], action) for pk, (_, actions) in gathered.answers.items() for action in actions]
    ended.sort(key=lambda pair: pair[1].finished_at or now, reverse=True)
    page = look.page_of(request, lines, PER_PAGE)
    schedulers = [one for found, _ in gathered.values() for one in wait_reasons.schedulers(found.services)]
    context = model_admin.admin_site.each_context(request) | {
        "title": "Actions in progress",
        "page": page,
        "table": table(page.object_list),
        "unplaced": {"headers": UNPLACED_HEADERS, "rows": _unplaced(schedulers)},
        "ended": {"headers": ENDED_HEADERS, "rows": [_ended_row(*pair) for pair in ended[:ENDED]]},
        "capped": [names[pk] for pk, (found, _) in gathered.answers.items() if len(found.steps) >= MOST],
        "most": MOST,
        "most_unplaced": PER_PAGE,
        "down": look.named_down(cells, gathered.down),
        "now": now,
    }
    return TemplateResponse(request, "admin/stillwater/progress.html", context)


def read(limit: int) -> OpenOperations:
    """Return the oldest open steps of the targeted cell with their actions, without columns that may hold secrets."""
    steps = Step.objects.open().select_related("action").defer(*HIDDEN)
    return OpenOperations(list(steps.order_by("queued_at", "pk")[:limit]), list(Service.objects.all()))


def oldest(by_cell: dict[str, OpenOperations]) -> list[StepRow]:
    """Return the steps of all cells, oldest first."""
    lines = []
    for cell, found in by_cell.items():
        known = wait_reasons.Services.of(found.services)
        lines += [StepRow(cell, step, known.wait_of(step)) for step in found.steps]
    return sorted(lines, key=lambda line: line.step.queued_at)


def table(lines: Any) -> dict[str, Any]:
    """Return the steps in the form of unfold's table."""
    return {"headers": HEADERS, "rows": [_row(line) for line in lines]}


def _row(line: StepRow) -> list[Any]:
    step = line.step
    return [
        badges.what(step.action.action, step.name), badges.server_link(step.server_id), line.cell,
        step.host or "conductor", badges.step_state(step), look.age(step.queued_at),
        look.age(_changed(step)), line.waits, step.attempts,
        badges.short(step.action.user_id or "-"), badges.short(step.action.request_id), step.details or "-",
    ]  # fmt: skip


def _unplaced(schedulers: list[Service]) -> list[list[Any]]:
    """Return the rows of servers to be placed."""
    found = BuildRequest.objects.defer("instance", "action").order_by("created_at", "server_id")[:PER_PAGE]
    return [
        [
            badges.server_link(one.server_id), wait_reasons.state_of(one), look.age(one.created_at),
            look.age(_taken(one)), wait_reasons.wait_of_request(one, schedulers), one.sends,
            badges.short(one.request_id),
        ]
        for one in found
    ]  # fmt: skip


def _changed(step: Step) -> datetime:
    """Return when a step last changed. A message sent again does not count: a stuck step would look active."""
    return max(step.queued_at, step.started_at or step.queued_at)


def _taken(request: BuildRequest) -> datetime:
    """Return when a scheduler took or last renewed the lease; without a lease, when the server was requested."""
    return request.lease_until - LEASE if request.lease_until else request.created_at


def _ended() -> list[InstanceAction]:
    rows = InstanceAction.objects.filter(finished_at__isnull=False).defer("params")
    return list(rows.order_by("-pk")[:ENDED])


def _ended_row(cell: str, action: InstanceAction) -> list[Any]:
    failed = action.message is not None
    result = look.label("failed", look.BAD, "✖") if failed else look.label("done", look.GOOD, "✓")
    return [
        action.action, badges.server_link(action.server_id), cell, f"{look.age(action.finished_at)} ago",
        result, badges.short(action.request_id), action.outcome or "-",
    ]  # fmt: skip
