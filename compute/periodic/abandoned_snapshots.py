"""Discard snapshot images without data: the API died between creating the image record and recording the action."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta

from django.conf import settings

from cells import database_clock, scatter
from cells.models import Cell, InstanceMapping
from cloud import log
from cloud.images import service
from compute.models import InstanceAction

logger = log.get(__name__)
BATCH = 500
PATIENCE = 4  # times RESEND_AFTER, one minute in all: longer than any API request takes
_after = ""  # last image id checked: many may be waiting for a host that is away


def discard() -> int:
    """Check some images that have been queued for long; return how many were discarded.

    Images of a cell that does not answer are left alone: the cell may have the action that will fill them.
    """
    discarded = 0
    for cell_id, images in _by_cell(_some_queued()).items():
        cell = Cell.objects.get(pk=cell_id)
        servers = set(images.values())
        named = scatter.ask_one(cell, lambda _, ids=servers: _filled_by_actions(ids))  # type: ignore[misc]
        if isinstance(named, scatter.CellFailure):
            continue
        for image_id in images.keys() - named:
            logger.warning("image.snapshot_abandoned", image=image_id, server=images[image_id], cell=cell.name)
            service.discard(image_id)
            discarded += 1
    return discarded


def _some_queued() -> dict[str, str]:
    global _after
    old = database_clock.read("default") - timedelta(seconds=PATIENCE * settings.RESEND_AFTER)
    found = service.queued_snapshots(old, _after, BATCH)
    _after = max(found) if len(found) == BATCH else ""
    return found


def _by_cell(images: dict[str, str]) -> dict[str, dict[str, str]]:
    """Only images of servers with a mapping: an image's properties may have been written by its owner."""
    placed = InstanceMapping.objects.filter(pk__in=set(images.values()), cell__isnull=False)
    cells = dict(placed.values_list("pk", "cell_id"))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for image_id, server_id in images.items():
        if server_id in cells:
            found[cells[server_id]][image_id] = server_id
    return found


def _filled_by_actions(server_ids: Collection[str]) -> set[str]:
    """The images that actions of these servers name, in the targeted cell: snapshots, backups, shelved images."""
    naming = InstanceAction.objects.filter(server_id__in=server_ids, params__has_key="image_id")
    return set(naming.values_list("params__image_id", flat=True))
