"""Repair of differences between the global database and the cells, e.g. after one was restored from a backup.

A mapping whose cell answers and has no such server is no longer counted; a server without a mapping gets one; a server
counted with another size than its row has (its resize was lost) is counted with the row's. All are checked in batches,
and repaired only when wrong for `PATIENCE`, as a restore may be under way. A server that is being created is never
taken for either: its mapping exists before its row, and its build request until the row is committed
(`compute/builds/build.py`). So mappings are read first, then build requests, then the cell.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from cells import batches, scatter
from cells.models import BuildRequest, Cell, InstanceMapping, RequestSpec, ServerSnapshot
from cloud import log
from compute.models import Instance
from compute.placement import server_groups
from compute.servers import deletion
from compute.state import VmState

logger = log.get(__name__)
BATCH = 500
PATIENCE = 600.0  # seconds
_lost_since: dict[str, dict[str, float]] = defaultdict(dict)  # by cell: counted mappings without a living row
_unmapped_since: dict[str, dict[str, float]] = defaultdict(dict)  # by cell: rows without a mapping
_missized_since: dict[str, dict[str, float]] = defaultdict(dict)  # by cell: rows counted with another size
_mappings_cursor, _rows_cursor = batches.BatchCursor(), batches.BatchCursor()


def repair() -> int:
    """Check a batch of servers of every cell, and those that were wrong before; return how many were repaired.

    Several schedulers may run it at once. A down cell is left alone, and the time of its servers begins anew.
    """
    return sum(_count_as_they_are(cell) + _map_again(cell) for cell in Cell.objects.all())


def forget(mapping: InstanceMapping) -> bool:
    """Delete a server whose cell has just answered that it has none; False when it is deleted already.

    Nothing of it stays in the global database, unless its cell has it as a deleted row. False also for a down cell.
    """
    counted = _counted().filter(pk=mapping.pk)
    if mapping.cell is None or not counted.exists():
        return False
    known = scatter.ask_one(mapping.cell, lambda _: Instance.objects.filter(uuid=mapping.pk).exists())
    if isinstance(known, scatter.CellFailure):
        return False
    with transaction.atomic(using="default"):
        gone = counted.update(queued_for_delete=True) if known else counted.delete()[0]
        if gone and not known:
            for model in (RequestSpec, ServerSnapshot):
                model.objects.filter(pk=mapping.pk).delete()
    logger.warning("server.lost_and_deleted", server=mapping.pk, cell=mapping.cell.name)
    return bool(gone)


def map_rows(cell: Cell, rows: Collection[Instance]) -> None:
    """Create mapping and request spec together, as quotas are counted from both. Idempotent."""
    with transaction.atomic(using="default"):
        InstanceMapping.objects.bulk_create([
            InstanceMapping(
                server_id=row.uuid, cell=cell, project_id=row.project_id, user_id=row.user_id,
                queued_for_delete=deletion.is_ended(row), created_at=row.created_at,
            ) for row in rows
        ], ignore_conflicts=True)  # fmt: skip
        RequestSpec.objects.bulk_create([
            RequestSpec(
                server_id=row.uuid, project_id=row.project_id, user_id=row.user_id, image_id=row.image_id,
                availability_zone=row.pinned_availability_zone, **_size(row),
            ) for row in rows
        ], ignore_conflicts=True)  # fmt: skip


def _count_as_they_are(cell: Cell) -> int:
    ids = _some_counted(cell)
    rows = Instance.objects.living(uuid__in=ids).defer("image")
    living = scatter.ask_one(cell, lambda _: {row.uuid: row for row in rows.all()})
    if isinstance(living, scatter.CellFailure):
        _lost_since.pop(cell.pk, None)
        _missized_since.pop(cell.pk, None)
        return 0
    return _uncount_lost(cell, ids, living) + _correct_sizes(cell, ids, living)


def _uncount_lost(cell: Cell, ids: set[str], living: Mapping[str, Instance]) -> int:
    due = _due(_lost_since[cell.pk], looked_at=ids, wrong=ids - living.keys())
    done = 0
    for server_id in due:
        if _counted().filter(pk=server_id, cell=cell).update(queued_for_delete=True):
            logger.warning("server.lost", server=server_id, cell=cell.name)
            done += 1
    return done


def _correct_sizes(cell: Cell, ids: set[str], living: Mapping[str, Instance]) -> int:
    """Only servers without an action and not resized: during a resize the larger size is counted."""
    counted = {
        pk: (vcpus, memory_mb)
        for pk, vcpus, memory_mb in RequestSpec.objects.filter(pk__in=living).values_list("pk", "vcpus", "memory_mb")
    }
    at_rest = {pk for pk, row in living.items() if row.task_state is None and row.vm_state != VmState.RESIZED}
    wrong = {pk for pk in at_rest & counted.keys() if counted[pk] != (living[pk].vcpus, living[pk].memory_mb)}
    done = 0
    for server_id in _due(_missized_since[cell.pk], looked_at=ids, wrong=wrong):
        row, (vcpus, memory_mb) = living[server_id], counted[server_id]
        as_seen = RequestSpec.objects.filter(pk=server_id, vcpus=vcpus, memory_mb=memory_mb)
        if as_seen.update(**_size(row)):
            logger.warning("quota.size_corrected", server=server_id, cell=cell.name, flavor=row.flavor_id)
            done += 1
    return done


def _size(row: Instance) -> dict[str, Any]:
    flavor = {"id": row.flavor_id, **row.flavor}
    return {"vcpus": row.vcpus, "memory_mb": row.memory_mb, "disk_gb": row.disk_gb, "flavor": flavor}


def _some_counted(cell: Cell) -> set[str]:
    counted = _counted().filter(cell=cell)
    page = [server_id for (server_id,) in _mappings_cursor.next(counted.values_list("pk"), BATCH, cell.pk)]
    wrong = [*_lost_since[cell.pk], *_missized_since[cell.pk]][:BATCH]
    again = counted.filter(pk__in=wrong).values_list("pk", flat=True)
    ids = {*page, *again}
    # Read after the mappings: a request that is gone by now has committed its row.
    return ids.difference(BuildRequest.objects.filter(pk__in=ids).values_list("pk", flat=True))


def _counted() -> QuerySet[InstanceMapping]:
    building = BuildRequest.objects.filter(pk=OuterRef("pk"))
    return InstanceMapping.objects.filter(server_groups.LIVING).exclude(Exists(building))


def _map_again(cell: Cell) -> int:
    again = list(_unmapped_since[cell.pk])[:BATCH]

    def read(_: Cell) -> tuple[list[tuple[int, str, bool]], list[str]]:
        seen = list(Instance.objects.living(uuid__in=again).values_list("uuid", flat=True))
        return _rows_cursor.next(Instance.objects.values_list("pk", "uuid", "deleted"), BATCH, cell.pk), seen

    answer = scatter.ask_one(cell, read)
    if isinstance(answer, scatter.CellFailure):
        _unmapped_since.pop(cell.pk, None)
        return 0
    page, seen = answer
    ids = {*seen, *(uuid for _, uuid, deleted in page if not deleted)}
    mapped = set(InstanceMapping.objects.filter(pk__in=ids).values_list("pk", flat=True))
    due = _due(_unmapped_since[cell.pk], looked_at=ids | set(again), wrong=ids - mapped)
    rows = scatter.ask_one(cell, lambda _: list(Instance.objects.living(uuid__in=due))) if due else []
    if isinstance(rows, scatter.CellFailure):
        return 0
    map_rows(cell, rows)
    for row in rows:
        logger.warning("server.remapped", server=row.uuid, cell=cell.name)
    return len(rows)


def _due(since: dict[str, float], *, looked_at: Iterable[str], wrong: Collection[str]) -> list[str]:
    """The servers that have been wrong for PATIENCE; the time of a server found correct begins anew."""
    now = time.monotonic()
    for server_id in looked_at:
        if server_id in wrong:
            since.setdefault(server_id, now)
        else:
            since.pop(server_id, None)
    due = [server_id for server_id in wrong if now - since[server_id] >= PATIENCE]
    for server_id in due:
        del since[server_id]
    return due
