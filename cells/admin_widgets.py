"""How admin pages ask cells, and how states, times and amounts look: colour, shape and word together."""

from __future__ import annotations

import time
from abc import abstractmethod
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR
from django.core.paginator import Page, Paginator
from django.db.models import Model
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from cells import circuit_breaker, scatter
from cells.models import Cell
from cloud.admin_page import ModelPage

NBSP = "\u00a0"  # a duration is one word
GOOD, BAD, WARN, BUSY, GREY = "success", "danger", "warning", "info", "default"
_FRAME = (
    "inline-block font-semibold rounded-default text-[11px] uppercase whitespace-nowrap h-6 leading-6 px-2 "
)
_COLOURS = {
    GOOD: "bg-green-100 text-green-700 dark:bg-green-500/20 dark:text-green-400",
    BAD: "bg-red-100 text-red-700 dark:bg-red-500/20 dark:text-red-400",
    WARN: "bg-orange-100 text-orange-700 dark:bg-orange-500/20 dark:text-orange-400",
    BUSY: "bg-blue-100 text-blue-700 dark:bg-blue-500/20 dark:text-blue-400",
    GREY: "bg-base-500/8 text-base-700 dark:bg-base-500/20 dark:text-base-200",
}


def down_for(cell_id: str) -> str:
    """How long this process has held a cell to be down that did not answer."""
    outage = circuit_breaker.outage(cell_id)
    return seconds(time.time() - outage.since) if outage else "a moment"


def named_down(cells: dict[str, Cell], down: dict[str, scatter.CellFailure]) -> list[tuple[str, str, str]]:
    """(name, reason, for how long) of each cell that did not answer."""
    return [(cells[pk].name, why.reason, down_for(pk)) for pk, why in down.items()]


def label(word: str, colour: str = GREY, sign: str = "", title: str = "") -> SafeString:
    """A coloured word with its sign; everything is escaped."""
    return format_html(
        '<span class="{}" title="{}">{}{}{}</span>',
        _FRAME + _COLOURS[colour], title, sign, " " if sign else "", word,
    )  # fmt: skip


def up_or_down(reason: str = "", since: str = "") -> SafeString:
    """A cell or host that answers, or does not and why."""
    if not reason:
        return label("up", GOOD, "▲")
    return label("down", BAD, "▼", f"{reason}, for {since}" if since else reason)


def age(when: datetime | None) -> str:
    """How long ago, in the two units that matter."""
    if when is None:
        return "-"
    return seconds((timezone.now() - when).total_seconds())


def seconds(number: float) -> str:
    """A duration in the two units that matter."""
    whole = max(0, int(number))
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size}{NBSP}{unit}{NBSP}{whole % size // smaller}{NBSP}{small}"
    return f"{whole}{NBSP}s"


def amount(used: float, total: float, unit: str = "") -> SafeString:
    """Used of total; amber from 90 %."""
    share = used / total if total else 0.0
    text = f"{used:,.0f} / {total:,.0f}{f' {unit}' if unit else ''}"
    return label(text, WARN, "!") if share >= 0.9 else format_html("{} ({}{}%)", text, round(share * 100), NBSP)


def page_of(request: HttpRequest, rows: list[Any], size: int) -> Page:
    """The page of a list that `?p=` asks for."""
    return Paginator(rows, size).get_page(request.GET.get(PAGE_VAR, 1))


class JoinedChangeList(ChangeList):
    """A list whose rows get the cells' details, page by page. `down`: the cells that did not answer, for its note."""

    down: list[tuple[str, str, str]]

    def get_results(self, request: HttpRequest) -> None:
        """One question per cell and page, whatever the page holds."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)  # type: ignore[has-type]  # set by the line above
        self.model_admin.join(rows)
        self.result_list = rows
        down = {row.cell_id: (row.cell, row.down) for row in rows if getattr(row, "down", None)}
        self.down = named_down({pk: cell for pk, (cell, _) in down.items()}, {pk: why for pk, (_, why) in down.items()})


class ReadOnlyPage(ModelPage):
    """Shows and changes nothing: whatever has a state moves only through its own verbs."""

    list_per_page = 50
    show_full_result_count = False
    actions: Any = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False


class JoinedPage(ReadOnlyPage):
    """A page over global records, with what their cells say about them."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The one that joins."""
        return JoinedChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """One record, joined as in a list."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            self.join([found])
        return found

    @abstractmethod
    def join(self, rows: list[Any]) -> None:
        """Give each record what its cell says."""
