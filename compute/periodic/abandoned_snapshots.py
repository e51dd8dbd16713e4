"""Snapshots nobody will fill: the API died after it made the image's record and before it recorded the action."""

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
PATIENCE = 4  # times RESEND_AFTER, a minute: so old is no request that still goes on
_after = ""  # where the last look ended: many may wait for a host that is away


def discard() -> int:
    """Look at some snapshots that are queued for long; how many were discarded.

    Those of a cell that does not answer are left alone: it may have an action that will fill them.
    """
    discarded = 0
    for cell_id, images in _by_cell(_some_queued()).items():
        cell = Cell.objects.get(pk=cell_id)
        servers = set(images.values())
        named = scatter.one(cell, lambda _, ids=servers: _filled_by_actions(ids))  # type: ignore[misc]
        if isinstance(named, scatter.CellFailure):
            continue
        for image_id in images.keys() - named:
            logger.warning("image.never_filled", image=image_id, server=images[image_id], cell=cell.name)
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
    """Only of servers that are known: what an image says of itself, its owner may have written."""
    placed = InstanceMapping.objects.filter(pk__in=set(images.values()), cell__isnull=False)
    cells = dict(placed.values_list("pk", "cell_id"))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for image_id, server_id in images.items():
        if server_id in cells:
            found[cells[server_id]][image_id] = server_id
    return found


def _filled_by_actions(server_ids: Collection[str]) -> set[str]:
    """Images that actions of these servers name, in the targeted cell: snapshots, backups, copies to shelve."""
    naming = InstanceAction.objects.filter(server_id__in=server_ids, params__has_key="image_id")
    return set(naming.values_list("params__image_id", flat=True))
