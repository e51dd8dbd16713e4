"""Discard snapshot images without data: the API died between creating the image record and recording the action."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.conf import settings

from cells import batches, database_clock
from cloud import log
from cloud.images import service
from compute.models import InstanceAction

logger = log.get(__name__)
BATCH = 500
PATIENCE = 4  # times RESEND_AFTER, one minute in all: longer than any API request takes
_cursor = batches.BatchCursor()  # many images may be waiting for a host that is away


def discard() -> int:
    """Check some images that have been queued for long; return how many were discarded.

    Images of a cell that does not answer are left alone: the cell may have the action that will fill them.
    """
    old = database_clock.read("default") - timedelta(seconds=PATIENCE * settings.RESEND_AFTER)
    images = dict(_cursor.next(service.queued_snapshots(old), BATCH))
    discarded = 0
    # only of servers with a mapping: an image's properties may have been written by its owner
    for cell, servers, named in batches.ask_cells(batches.by_cell(set(images.values())), _filled_by_actions):
        for image_id in images.keys() - named:
            if images[image_id] in servers:
                logger.warning("image.snapshot_abandoned", image=image_id, server=images[image_id], cell=cell.name)
                service.discard(image_id)
                discarded += 1
    return discarded


def _filled_by_actions(server_ids: Collection[str]) -> set[str]:
    """The images that actions of these servers name, in the targeted cell: snapshots, backups, shelved images."""
    naming = InstanceAction.objects.filter(server_id__in=server_ids, params__has_key="image_id")
    return set(naming.values_list("params__image_id", flat=True))
