"""Receive a batch of events: find each server, ask its cell, return a code per event. Events are independent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from cells import scatter
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud import log
from cloud.caller import Caller
from compute.external_events import deferred, event_types, journal
from compute.external_events.deduplication import Event
from compute.external_events.journal import ACCEPTED, NO_HOST, UNKNOWN

logger = log.get(__name__)
BAD_TAG = 400
SHARE = 0.3  # of CELL_TIMEOUT: the client (Ironic) waits with its node locked
SHOWN = 50  # refused events of a batch that are logged one by one


@dataclass(slots=True)
class _ServerLocation:
    """Where the servers of a batch are."""

    cells: dict[str, Cell] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)  # cell id by server id
    deleted: set[str] = field(default_factory=set)  # or being deleted
    unplaced: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)  # servers with deferred events


def receive(said: Sequence[Mapping[str, Any]], caller: Caller, request_id: str) -> list[int]:
    """Record a batch; return the code of each event, in order. Does not wait for hosts."""
    received_at = timezone.now()
    events = [
        Event(
            str(UUID(one["server_uuid"])), one["name"], one.get("tag") or "", one.get("status", "completed"),
            request_id, caller.user_id, caller.project_id, received_at,
        )
        for one in said
    ]  # fmt: skip
    where = _where({event.server_id for event in events})
    good = [event for event in events if event_types.EVENT_TYPES[event.name].takes(event.tag)]
    codes = _look(where)
    late_or_now = [event for event in good if _code(event, where, codes) == ACCEPTED]
    now = [event for event in late_or_now if event.server_id in codes and event.server_id not in where.waiting]
    written = _write(where, now)
    codes |= written
    kept = [event for event in late_or_now if event.server_id not in written]
    if kept:
        deferred.defer([(where.of[event.server_id], event) for event in kept])
    answers = [_code(event, where, codes) for event in events]
    _log(events, answers, kept)
    return answers


def _where(servers: Collection[str]) -> _ServerLocation:
    """Build requests are read before mappings: a server that is just being placed is found in one of them."""
    found = _ServerLocation()
    asked_for = BuildRequest.objects.filter(pk__in=servers, delete_requested=False)
    found.unplaced = set(asked_for.values_list("pk", flat=True))
    for mapping in InstanceMapping.objects.select_related("cell").filter(pk__in=servers):
        if mapping.cell is not None:
            found.cells[mapping.cell.id] = mapping.cell
            found.of[mapping.server_id] = mapping.cell.id
        if mapping.queued_for_delete:
            found.deleted.add(mapping.server_id)
    found.waiting = deferred.waiting(servers)
    return found


def _look(where: _ServerLocation) -> dict[str, int]:
    """The codes of servers that have a cell; servers of down cells are missing."""

    def ask(cell: Cell) -> dict[str, int]:
        return journal.look([server_id for server_id, cell_id in where.of.items() if cell_id == cell.id])

    gathered = scatter.gather(where.cells.values(), ask, settings.CELL_TIMEOUT * SHARE)
    return {server_id: code for codes in gathered.values() for server_id, code in codes.items()}


def _write(where: _ServerLocation, events: Sequence[Event]) -> dict[str, int]:
    """Record the events of cells that answered just now; the codes of the servers whose events were written."""

    def ask(cell: Cell) -> dict[str, int]:
        mine = [event for event in events if where.of[event.server_id] == cell.id]
        try:
            return journal.record(mine)
        except scatter.AWAY:
            raise
        except Exception:  # our bug: events of other cells are still recorded
            logger.exception("event.record_failed", cell=cell.id, events=len(mine))
            return {}

    cells = {where.of[event.server_id] for event in events}
    gathered = scatter.gather([where.cells[cell_id] for cell_id in sorted(cells)], ask, scatter.SECONDS_TO_CHANGE)
    return {server_id: code for one in gathered.values() for server_id, code in one.items()}


def _code(event: Event, where: _ServerLocation, codes: Mapping[str, int]) -> int:
    """Unknown server first, then the tag, then the host: Nova's order."""
    in_a_down_cell = event.server_id in where.of and event.server_id not in where.deleted
    code = codes.get(event.server_id, ACCEPTED if in_a_down_cell else UNKNOWN)
    if code == UNKNOWN and event.server_id in where.unplaced:
        code = NO_HOST
    if code == UNKNOWN:
        return UNKNOWN
    return code if event_types.EVENT_TYPES[event.name].takes(event.tag) else BAD_TAG


def _log(events: Sequence[Event], codes: Sequence[int], kept: Sequence[Event]) -> None:
    """Log one record per batch, and one per refused event, at most SHOWN."""
    counted = Counter((event.name, code) for event, code in zip(events, codes, strict=True))
    shown = {f"{name} {code}": count for (name, code), count in sorted(counted.items())}
    logger.info("event.received", events=len(events), deferred=len(kept), by_name_and_code=shown)
    refused = [(event, code) for event, code in zip(events, codes, strict=True) if code != ACCEPTED]
    for event, code in refused[:SHOWN]:
        logger.warning("event.refused", event_name=event.name, tag=event.tag, server=event.server_id, code=code)
