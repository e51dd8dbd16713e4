"""Migrations: a view of the journal, for there is no other record of them. The database works out their status.

The newest come first, over all cells that answer. Within a cell they are in the order of their rows, which an index
has; so a page costs the same number of queries, however many migrations there were.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Case, CharField, Exists, Max, Min, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from cells import scatter
from cells.models import CELL0, Cell
from cloud.errors import BadRequest
from compute.errors import CellDown
from compute.models import InstanceAction, Step

LIVE, EVACUATE = "MigrateLive", "Evacuate"
TYPES = {LIVE: "live-migration", "Resize": "resize", "Migrate": "migration", EVACUATE: "evacuation"}
IN_PROGRESS = frozenset({"accepted", "queued", "preparing", "running", "post-migrating"})  # of live ones
MAY_FORCE = MAY_ABORT = frozenset({"running"})
MAY_ABORT_QUEUED = frozenset({"accepted", "queued", "preparing", "running"})  # since 2.65
# the open step of a migration -> its status; `migrate` is only running once somebody has begun it
_LIVE_AT = {
    "pick": "accepted", "check_destination": "queued", "check_source": "queued", "pre_migrate": "preparing",
    "migrate": "running", "arrive": "post-migrating", "clean_up_source": "post-migrating",
}  # fmt: skip
_COLD_AT = {"leave": "migrating", "finish": "post-migrating", "forget_source": "post-migrating"}
_COPIED = frozenset({"post-migrating", "completed", "finished", "confirmed", "reverted", "done"})
_BEGUN = ("pre_migrate", "build")  # a step that leaves something at the destination
STATUSES = (
    "accepted", "queued", "preparing", "running", "pre-migrating", "migrating", "post-migrating", "completed",
    "finished", "confirmed", "reverted", "done", "cancelled", "failed", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryMarker:
    """Where a migration is in the order of all: see `_aged`."""

    cell_id: str
    pk: int
    age: datetime


@dataclass(slots=True)
class HistoryPage:
    """Migrations with their cells, the newest first; and the cells that did not answer."""

    rows: list[tuple[Cell, InstanceAction]] = field(default_factory=list)
    down: dict[str, scatter.CellFailure] = field(default_factory=dict)


def migrations(where: Q | None = None) -> QuerySet[InstanceAction]:
    """Those of the targeted cell, with their `status`."""
    return InstanceAction.objects.annotate(status=_status()).filter(where or Q(), key__in=TYPES)


def status(row: InstanceAction) -> str:
    """One of Nova's words."""
    return str(row.status)  # type: ignore[attr-defined]  # annotated by `migrations`


def progress(row: InstanceAction) -> dict[str, Any]:
    """What is known of memory and disk. The last report of a guest comes before its end, so the end is known better."""
    known: dict[str, Any] = row.params.get("progress") or {}
    return known | {"memory_left": 0, "disk_left": 0} if is_copied(row) else known


def is_copied(row: InstanceAction) -> bool:
    """Whether all of the guest is at the destination."""
    return status(row) in _COPIED


def page(where: Q, limit: int | None, marker: str = "", *, keys: Collection[str] = tuple(TYPES),
         with_steps: bool = False) -> HistoryPage:  # fmt: skip
    """A page of them, after one that is named by its uuid. Raises BadRequest for an unknown one, CellDown."""
    cells = {cell.pk: cell for cell in Cell.objects.exclude(pk=CELL0)}
    place = _place(marker, cells) if marker else None
    if limit == 0:
        return HistoryPage()

    def read(cell: Cell) -> list[InstanceAction]:
        found = migrations(where & _after(cell, place))
        return _newest(found.prefetch_related("steps") if with_steps else found, limit, keys)

    gathered = scatter.gather(cells.values(), read)
    age = place.age if place else None
    heaps = (_aged(cells[pk], rows, age) for pk, rows in gathered.answers.items())
    merged = heapq.merge(*heaps, key=lambda found: (found[0], found[1].pk), reverse=True)
    rows = [(cell, row) for _, cell, row in merged]
    return HistoryPage(rows[:limit], dict(gathered.down))


def _newest(found: QuerySet[InstanceAction], limit: int | None, keys: Collection[str]) -> list[InstanceAction]:
    """One query for each kind: then the index of kinds has their order, too."""
    each = [row for key in keys for row in found.filter(key=key).order_by("-pk")[:limit]]
    return sorted(each, key=lambda row: row.pk, reverse=True)[:limit]


def _aged(cell: Cell, rows: list[InstanceAction],
          age: datetime | None) -> Iterator[tuple[datetime, Cell, InstanceAction]]:  # fmt: skip
    """With a time that never rises: of two that were asked for at once either may have been recorded first."""
    for row in rows:
        age = row.started_at if age is None else min(age, row.started_at)
        yield age, cell, row


def _after(cell: Cell, place: HistoryMarker | None) -> Q:
    """What comes after a place, in a cell."""
    if place is None:
        return Q()
    if cell.pk == place.cell_id:
        return Q(pk__lt=place.pk)
    compare = "lt" if cell.pk > place.cell_id else "lte"  # among equals the cells decide
    older = _all().filter(**{f"started_at__{compare}": place.age})
    return Q(pk__lte=older.aggregate(newest=Max("pk"))["newest"] or 0)


def _place(uuid: str, cells: dict[str, Cell]) -> HistoryMarker:
    def look(cell: Cell) -> HistoryMarker | None:
        pk = _all().filter(params__uuid=uuid).values_list("pk", flat=True).first()
        if pk is None:
            return None
        return HistoryMarker(cell.pk, pk, _all().filter(pk__gte=pk).aggregate(age=Min("started_at"))["age"])

    gathered = scatter.gather(cells.values(), look)
    for place in gathered.answers.values():
        if place is not None:
            return place
    for cell_id in gathered.down:
        raise CellDown(cells[cell_id].name)
    raise BadRequest(f"marker [{uuid}] not found")


def _all() -> QuerySet[InstanceAction]:
    return InstanceAction.objects.filter(key__in=TYPES)


def _status() -> Case:
    steps = Step.objects.filter(action=OuterRef("pk"))
    wrong = Q(fault__isnull=False) | Q(message__isnull=False)
    called_off = Q(params__abort=True) | Q(Exists(steps.filter(state=Step.State.CANCELLED)))
    over = Q(finished_at__isnull=False)
    return Case(
        _word(wrong & called_off, "cancelled"),
        _word(wrong & Q(Exists(steps.filter(name__in=_BEGUN))), "failed"),
        _word(wrong, "error"),
        _word(over & (Q(key=LIVE) | Q(key=EVACUATE, params__cleaned=True)), "completed"),
        _word(over & Q(key=EVACUATE), "done"),  # the host it left has not removed it yet
        When(over & Q(params__has_key="ended"), then=KT("params__ended")),
        _word(over, "finished"),  # it waits for the user's word
        default=_on_the_way(steps),
        output_field=CharField(),
    )


def _on_the_way(steps: QuerySet[Step]) -> Any:
    live, evacuation = Q(action__key=LIVE), Q(action__key=EVACUATE)
    at = Case(
        _word(live & Q(name="migrate", state=Step.State.QUEUED), "preparing"),
        *(_word(live & Q(name=name), word) for name, word in _LIVE_AT.items()),
        _word(evacuation & Q(name="pick"), "accepted"),
        *(_word(~evacuation & Q(name=name), word) for name, word in _COLD_AT.items()),
        default=Value("pre-migrating"),
        output_field=CharField(),
    )
    return Coalesce(Subquery(steps.annotate(word=at).order_by("-pk").values("word")[:1]), Value("accepted"))


def _word(condition: Q, word: str) -> When:
    return When(condition, then=Value(word))
