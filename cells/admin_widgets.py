"""Parts of the admin pages that show cells: joined lists, and states, times and amounts by colour, sign and text."""

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
from cloud.durations import format_duration

NBSP = "\u00a0"  # a duration must not break across lines
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
    """Return how long this process has held the cell to be down; "a moment" when its circuit breaker is closed."""
    outage = circuit_breaker.outage(cell_id)
    return seconds(time.time() - outage.since) if outage else "a moment"


def named_down(cells: dict[str, Cell], down: dict[str, scatter.CellFailure]) -> list[tuple[str, str, str]]:
    """Return (name, reason, duration) of each cell that did not answer."""
    return [(cells[pk].name, why.reason, down_for(pk)) for pk, why in down.items()]


def label(word: str, colour: str = GREY, sign: str = "", title: str = "") -> SafeString:
    """Return a coloured label with its sign. All parts are escaped."""
    return format_html(
        '<span class="{}" title="{}">{}{}{}</span>',
        _FRAME + _COLOURS[colour], title, sign, " " if sign else "", word,
    )  # fmt: skip


def up_or_down(reason: str = "", since: str = "") -> SafeString:
    """Return the label "up", or without an answer "down" with the reason and the duration as its title."""
    if not reason:
        return label("up", GOOD, "▲")
    return label("down", BAD, "▼", f"{reason}, for {since}" if since else reason)


def age(when: datetime | None) -> str:
    """Return the time since `when` in its two largest units."""
    if when is None:
        return "-"
    return seconds((timezone.now() - when).total_seconds())


def seconds(number: float) -> str:
    """Return a duration in its two largest units."""
    return format_duration(number).replace(" ", NBSP)


def amount(used: float, total: float, unit: str = "") -> SafeString:
    """Return "used / total" with the percentage; from 90 % an amber label."""
    share = used / total if total else 0.0
    text = f"{used:,.0f} / {total:,.0f}{f' {unit}' if unit else ''}"
    return label(text, WARN, "!") if share >= 0.9 else format_html("{} ({}{}%)", text, round(share * 100), NBSP)


def page_of(request: HttpRequest, rows: list[Any], size: int) -> Page:
    """Return the page of `rows` that `?p=` selects."""
    return Paginator(rows, size).get_page(request.GET.get(PAGE_VAR, 1))


class JoinedChangeList(ChangeList):
    """A list whose rows get details from their cells, one page at a time. `down`: as from `named_down`."""

    down: list[tuple[str, str, str]]

    def get_results(self, request: HttpRequest) -> None:
        """Query each cell once per page, however many rows of it the page holds."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)  # type: ignore[has-type]  # set by the line above
        self.model_admin.join(rows)
        self.result_list = rows
        down = {row.cell_id: (row.cell, row.down) for row in rows if getattr(row, "down", None)}
        self.down = named_down({pk: cell for pk, (cell, _) in down.items()}, {pk: why for pk, (_, why) in down.items()})


class ReadOnlyPage(ModelPage):
    """A page that shows records and changes nothing: states change only through actions."""

    list_per_page = 50
    show_full_result_count = False
    actions: Any = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False


class JoinedPage(ReadOnlyPage):
    """A page over global records that adds what their cells report."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that joins."""
        return JoinedChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return one record, joined as in a list."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            self.join([found])
        return found

    @abstractmethod
    def join(self, rows: list[Any]) -> None:
        """Add to each record what its cell reports."""
