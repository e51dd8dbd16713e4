"""Migrations (os-migrations): a view of the journal, without rows of their own. The database computes their status.

The newest come first, merged over all cells that answer. Within a cell the order is that of the row ids, which an index
has; so a page costs the same number of queries however many migrations there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import Case, CharField, Exists, Max, Min, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from cells import scatter
from cells.models import CELL0, Cell
from cloud.errors import BadRequest
from compute.errors import CellDown
from compute.migration.moves import MoveParams
from compute.models import InstanceAction, Step
from compute.operations import registry
from compute.operations.action import On, Role, StepSpec
from compute.virt.base import Progress

RUNNING = "running"
IN_PROGRESS = frozenset({"accepted", "queued", "preparing", RUNNING, "post-migrating"})  # of live migrations
MAY_FORCE = MAY_ABORT = frozenset({RUNNING})
MAY_ABORT_QUEUED = frozenset({"accepted", "queued", "preparing", "running"})  # since 2.65
_COPIED = frozenset({"post-migrating", "completed", "finished", "confirmed", "reverted", "done"})
MIGRATIONS = (Role.LIVE_MIGRATION, Role.RESIZE, Role.COLD_MIGRATION, Role.EVACUATION)
STATUSES = (
    "accepted", "queued", "preparing", "running", "pre-migrating", "migrating", "post-migrating", "completed",
    "finished", "confirmed", "reverted", "done", "cancelled", "failed", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryMarker:
    """The position of a migration in the order over all cells; `age` as in `_aged()`."""

    cell_id: str
    pk: int
    age: datetime


@dataclass(slots=True)
class HistoryPage:
    """Migrations with their cells, the newest first; and the cells that did not answer."""

    rows: list[tuple[Cell, InstanceAction]] = field(default_factory=list)
    down: dict[str, scatter.CellFailure] = field(default_factory=dict)


def types() -> dict[str, str]:
    """Return the type in os-migrations of each action that is a migration, by its key in the journal."""
    return {key: str(action.role) for key, action in registry.every().items() if action.role in MIGRATIONS}


def is_live(row: InstanceAction) -> bool:
    """Return whether a migration is a live migration."""
    return row.key == registry.key_of(Role.LIVE_MIGRATION)


def is_evacuation(row: InstanceAction) -> bool:
    """Return whether a migration is an evacuation."""
    return row.key == registry.key_of(Role.EVACUATION)


def migrations(where: Q | None = None) -> QuerySet[InstanceAction]:
    """Return the migrations of the targeted cell, annotated with `status`."""
    return InstanceAction.objects.annotate(status=_status()).filter(where or Q(), key__in=types())


def status(row: InstanceAction) -> str:
    """Return Nova's status of a migration that `migrations()` has read."""
    return str(row.status)  # type: ignore[attr-defined]  # annotated by `migrations`


def progress(row: InstanceAction) -> Progress:
    """Return the memory and disk progress of a migration.

    The last report of the guest is from before its end; so once all is copied, nothing is left, whatever that report
    says.
    """
    known = MoveParams.load(row.params).progress or Progress()
    return replace(known, memory_left=0, disk_left=0) if is_copied(row) else known


def is_copied(row: InstanceAction) -> bool:
    """Whether all of the guest is at the destination."""
    return status(row) in _COPIED


def page(where: Q, limit: int | None, marker: str = "", *, keys: Collection[str] | None = None,
         with_steps: bool = False) -> HistoryPage:  # fmt: skip
    """Return a page of migrations, after the one whose uuid is `marker`; `keys`: of the actions, all by default.

    Raises BadRequest when no cell has the marker, CellDown when a down cell may have it.
    """
    cells = {cell.pk: cell for cell in Cell.objects.exclude(pk=CELL0)}
    place = _place(marker, cells) if marker else None
    if limit == 0:
        return HistoryPage()

    def read(cell: Cell) -> list[InstanceAction]:
        found = migrations(where & _after(cell, place))
        found = found.prefetch_related("steps") if with_steps else found
        return _newest(found, limit, types() if keys is None else keys)

    gathered = scatter.gather(cells.values(), read)
    age = place.age if place else None
    heaps = (_aged(cells[pk], rows, age) for pk, rows in gathered.answers.items())
    merged = heapq.merge(*heaps, key=lambda found: (found[0], found[1].pk), reverse=True)
    rows = [(cell, row) for _, cell, row in merged]
    return HistoryPage(rows[:limit], dict(gathered.down))


def _newest(found: QuerySet[InstanceAction], limit: int | None, keys: Collection[str]) -> list[InstanceAction]:
    """One query per action key: only then can the index on (key, id) return the order."""
    each = [row for key in keys for row in found.filter(key=key).order_by("-pk")[:limit]]
    return sorted(each, key=lambda row: row.pk, reverse=True)[:limit]


def _aged(cell: Cell, rows: list[InstanceAction],
          age: datetime | None) -> Iterator[tuple[datetime, Cell, InstanceAction]]:  # fmt: skip
    """Add a time to each row that never rises down the list, for the merge.

    Of two actions begun at the same time the later one may have the smaller id, so `started_at` alone is not monotonic.
    """
    for row in rows:
        age = row.started_at if age is None else min(age, row.started_at)
        yield age, cell, row


def _after(cell: Cell, place: HistoryMarker | None) -> Q:
    """The rows of a cell after a position. The order is by `age`, then cell id, then row id."""
    if place is None:
        return Q()
    if cell.pk == place.cell_id:
        return Q(pk__lt=place.pk)
    compare = "lt" if cell.pk > place.cell_id else "lte"  # equal age: the larger cell id comes first
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
    return InstanceAction.objects.filter(key__in=types())


def _status() -> Case:
    steps = Step.objects.filter(action=OuterRef("pk"))
    wrong = Q(fault__isnull=False) | Q(message__isnull=False)
    called_off = Q(params__abort=True) | Q(Exists(steps.filter(state=Step.State.CANCELLED)))
    over = Q(finished_at__isnull=False)
    live, evacuation = Q(key=registry.key_of(Role.LIVE_MIGRATION)), Q(key=registry.key_of(Role.EVACUATION))
    return Case(
        _word(wrong & called_off, "cancelled"),
        _word(wrong & Q(Exists(steps.filter(name__in=_prepares_destination()))), "failed"),
        _word(wrong, "error"),
        _word(over & (live | evacuation & Q(params__cleaned=True)), "completed"),
        _word(over & evacuation, "done"),  # the old host has not removed its guest yet
        When(over & Q(params__has_key="ended"), then=KT("params__ended")),
        _word(over, "finished"),  # waits for confirm or revert
        default=_on_the_way(steps),
        output_field=CharField(),
    )


def _on_the_way(steps: QuerySet[Step]) -> Any:
    declared = [(Q(action__key=key, name=spec.name), spec) for key, spec in _specs() if spec.status]
    queued = [where & Q(state=Step.State.QUEUED) for where, spec in declared if spec.status == RUNNING]
    at = Case(
        *(_word(where, "preparing") for where in queued),
        *(_word(where, spec.status) for where, spec in declared),
        default=Value("pre-migrating"),
        output_field=CharField(),
    )
    return Coalesce(Subquery(steps.annotate(word=at).order_by("-pk").values("word")[:1]), Value("accepted"))


def _prepares_destination() -> set[str]:
    """The names of the steps that leave something at the destination."""
    return {spec.name for _, spec in _specs() if spec.on is On.DEST and spec.undo}


def _specs() -> Iterator[tuple[str, StepSpec]]:
    """The steps of all migrations, with the keys of their actions."""
    return ((key, spec) for key in types() for spec in registry.named(key).steps)


def _word(condition: Q, word: str) -> When:
    return When(condition, then=Value(word))
