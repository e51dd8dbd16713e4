"""Record events in a cell's journal: a batch in one transaction, with a constant number of queries."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db import transaction
from django.db.models import Q

from cells.context import current_alias
from cloud.caller import new_request_id
from compute.actions.bases.event import EventParams
from compute.external_events import deduplication, event_types
from compute.external_events.deduplication import Entry, Event
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal
from compute.operations.params import ActionParams

ACCEPTED, UNKNOWN, NO_HOST = 200, 404, 422
TRIES, PAUSE = 3, 0.1  # to lock servers' rows; seconds between


def look(servers: Collection[str]) -> dict[str, int]:
    """Return the current code of each server of the targeted cell: one fast read, which shows that the cell answers."""
    living = Instance.objects.living(uuid__in=servers)
    hosts = dict(living.values_list("uuid", "host"))
    return {server_id: _code(hosts.get(server_id)) for server_id in servers}


def record(events: Sequence[Event]) -> dict[str, int]:
    """Record events of servers of the targeted cell; return the code of each server at that time.

    Locks the servers' rows, so that the events of a moving server move with it. A row that another transaction has
    locked is skipped and tried again twice; then its server is missing in the result. Idempotent: recorded events are
    not written again.
    """
    codes: dict[str, int] = {}
    left = list(events)
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        with transaction.atomic(using=current_alias()):
            hosts = _lock({event.server_id for event in left})
            _write(_by_server(event for event in left if hosts.get(event.server_id)), hosts)
        codes |= {server_id: _code(host) for server_id, host in hosts.items()}
        left = [event for event in left if event.server_id not in codes]
        if not left:
            break
    return codes


def _lock(servers: Collection[str]) -> dict[str, str]:
    """The hosts of the servers whose rows are now locked, until the transaction ends."""
    living = Instance.objects.living(uuid__in=servers)
    return dict(living.select_for_update(skip_locked=True, of=("self",)).values_list("uuid", "host"))


def _code(host: str | None) -> int:
    if host is None:
        return UNKNOWN
    return ACCEPTED if host else NO_HOST


def _by_server(events: Iterable[Event]) -> dict[str, list[Event]]:
    found = defaultdict(list)
    for event in events:
        found[event.server_id].append(event)
    return found


def _write(events: Mapping[str, list[Event]], hosts: Mapping[str, str]) -> None:
    """Record the new events of each server in order, under the servers' locks."""
    if not events:
        return
    lines, taken = _on_record(events)
    new = {server_id: deduplication.new_events(said, lines[server_id]) for server_id, said in events.items()}
    if not any(new.values()):
        return
    moving = _moving(new)
    asked = []
    for server_id, said in new.items():
        for event in said:
            asked.append(_action(event, hosts[server_id], moving[server_id], taken))
    journal.open_many(asked)


def _on_record(events: Mapping[str, list[Event]]) -> tuple[dict[str, list[Entry]], set[tuple[str, str]]]:
    """The recent entries of the servers, the oldest first; and the request ids already in use."""
    each = [event for said in events.values() for event in said]
    since = min(event.received_at for event in each) - deduplication.WITHIN
    named = Q(request_id__in={event.request_id for event in each})
    found = InstanceAction.objects.filter(named | Q(started_at__gte=since), server_id__in=list(events))
    lines: dict[str, list[Entry]] = defaultdict(list)
    taken = set()
    rows = found.order_by("pk").values_list("server_id", "request_id", "started_at", "params")
    for server_id, request_id, started_at, params in rows:
        taken.add((server_id, request_id))
        lines[server_id].append(deduplication.entry(params, started_at))
    return lines, taken


def _moving(servers: Iterable[str]) -> dict[str, set[str]]:
    """Source and destination of servers with an open move."""
    going = InstanceAction.objects.filter(server_id__in=list(servers), finished_at__isnull=True)
    hosts: dict[str, set[str]] = defaultdict(set)
    for server_id, kept in going.values_list("server_id", "params"):
        params = ActionParams.load(kept)
        if params.destination:
            hosts[server_id] |= {params.source, params.destination} - {""}
    return hosts


def _action(event: Event, host: str, moving: set[str],
            taken: set[tuple[str, str]]) -> tuple[InstanceAction, list[Step]]:  # fmt: skip
    """The journal row of an event, and one step for each host that is to receive it."""
    kind = event_types.EVENT_TYPES[event.name]
    carries = kind.action()
    params = EventParams(event=deduplication.received(event))
    action = InstanceAction(
        server_id=event.server_id, action=kind.tags.get(event.tag, carries.name), key=kind.action.__name__,
        params=params.as_json(), request_id=_request_id(event, taken) if carries.is_shown else event.request_id,
        user_id=event.user_id, project_id=event.project_id,
    )  # fmt: skip
    first = carries.steps[0]
    heard_on = [host, *sorted(moving - {host})] if kind.both_hosts else [host]
    return action, [Step(name=first.name, event=first.event, host=one, queue=first.queue) for one in heard_on]


def _request_id(event: Event, taken: set[tuple[str, str]]) -> str:
    """The event's request id; a new one when the server's history has it already, as Nova looks an action up by it."""
    mine = (event.server_id, event.request_id)
    if mine in taken:
        return new_request_id()
    taken.add(mine)
    return event.request_id
