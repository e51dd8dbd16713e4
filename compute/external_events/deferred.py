"""Events of servers in a down cell: kept in the global database, delivered when it is back, once each and in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from django.db import transaction

from cells import circuit_breaker, scatter
from cells.models import Cell, DeferredEvent
from cloud import log, metrics
from compute.external_events import deduplication, journal
from compute.external_events.deduplication import Entry, Event

logger = log.get(__name__)
BATCH = 500  # events per transaction
BATCHES = 10  # per cell and round
FAILED = 500


def waiting(servers: Collection[str]) -> set[str]:
    """Return the servers with kept events. A new event is kept behind them, even if the cell is back: in order."""
    found = DeferredEvent.objects.filter(server_id__in=servers).values_list("server_id", flat=True)
    return set(found.distinct())


def defer(events: Sequence[tuple[str, Event]]) -> None:
    """Keep events, each with its cell's id; a repeated request is kept once."""
    cells, servers = {cell_id for cell_id, _ in events}, {event.server_id for _, event in events}
    with transaction.atomic(using="default"):
        # Lock the cells' rows, so that a repeated request sees the events of the first one.
        list(Cell.objects.select_for_update(no_key=True).filter(pk__in=cells).order_by("pk").values_list("pk"))
        since = min(event.received_at for _, event in events) - deduplication.WITHIN
        lately = DeferredEvent.objects.filter(cell__in=cells, server_id__in=servers, received_at__gte=since)
        lines: dict[str, list[Entry]] = defaultdict(list)
        columns = lately.order_by("pk").values_list("server_id", "request_id", "name", "tag", "received_at")
        for server_id, *said, received_at in columns:
            lines[server_id].append(Entry((said[0], said[1], said[2]), received_at))
        asked: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for cell_id, event in events:
            asked[cell_id, event.server_id].append(event)
        DeferredEvent.objects.bulk_create(
            _row(cell_id, event)
            for (cell_id, server_id), new in asked.items() for event in deduplication.new_events(new, lines[server_id])
        )  # fmt: skip
    for cell_id in cells:
        count = sum(1 for one, _ in events if one == cell_id)
        logger.info("event.deferred", cell=cell_id, events=count)


def deliver() -> int:
    """Deliver the events of cells that are back; return how many are done. Several schedulers may run it at once."""
    done = 0
    for cell in Cell.objects.filter(deferred_events__isnull=False).distinct():
        for _ in range(BATCHES):
            count = 0 if circuit_breaker.known_down(cell.id) else _deliver(cell)
            done += count
            if count < BATCH:
                break
    return done


def _deliver(cell: Cell) -> int:
    """Deliver one batch, the oldest first; return how many are done."""
    rows = list(cell.deferred_events.order_by("pk")[:BATCH])
    if not rows:
        return 0
    codes = _record(cell, [_event(row) for row in rows])
    over = DeferredEvent.objects.filter(pk__in=[row.pk for row in rows if row.server_id in codes])
    with transaction.atomic(using="default"):
        mine = list(over.select_for_update(of=("self",)).order_by("pk"))  # another scheduler may have been faster
        DeferredEvent.objects.filter(pk__in=[row.pk for row in mine]).delete()
    for row in mine:
        _tell(row, codes[row.server_id])
    return len(mine)


def _record(cell: Cell, events: Sequence[Event]) -> dict[str, int]:
    """The code of each server whose events need not be kept any longer."""
    servers = {event.server_id for event in events}
    codes = scatter.ask_one(cell, lambda _: journal.look(servers))
    if isinstance(codes, scatter.CellFailure):
        return {}
    living = [event for event in events if codes[event.server_id] == journal.ACCEPTED]

    def ask(_: Cell) -> dict[str, int]:
        try:
            return journal.record(living)
        except scatter.AWAY:
            raise
        except Exception:  # one event may fail the whole batch: try each server by itself
            logger.exception("event.batch_failed", cell=cell.id, events=len(living))
            return _one_by_one(living)

    written = scatter.gather([cell], ask, scatter.SECONDS_TO_CHANGE).answers.get(cell.id, {})
    return {server_id: code for server_id, code in codes.items() if code != journal.ACCEPTED} | written


def _one_by_one(events: Sequence[Event]) -> dict[str, int]:
    """Record server by server in the targeted cell; events of a server that fails are given up."""
    codes: dict[str, int] = {}
    for server_id in dict.fromkeys(event.server_id for event in events):
        try:
            codes |= journal.record([event for event in events if event.server_id == server_id])
        except scatter.AWAY:
            raise
        except Exception:
            logger.exception("event.dropped", server=server_id)
            codes[server_id] = FAILED
    return codes


def _tell(row: DeferredEvent, code: int) -> None:
    outcome = "delivered" if code == journal.ACCEPTED else "given up"
    metrics.DEFERRED_EVENTS.labels(row.name, outcome).inc()
    logger.info(
        "event.deferred_finished", outcome=outcome, code=code, event_name=row.name, tag=row.tag, server=row.server_id,
        request_id=row.request_id,
    )  # fmt: skip


def _row(cell_id: str, event: Event) -> DeferredEvent:
    return DeferredEvent(
        cell_id=cell_id, server_id=event.server_id, name=event.name, tag=event.tag, status=event.status,
        request_id=event.request_id, user_id=event.user_id, project_id=event.project_id, received_at=event.received_at,
    )  # fmt: skip


def _event(row: DeferredEvent) -> Event:
    return Event(
        row.server_id, row.name, row.tag, row.status, row.request_id, row.user_id, row.project_id, row.received_at
    )
