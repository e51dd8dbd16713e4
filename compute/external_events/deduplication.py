"""Recognise events that are recorded already.

A service repeats a request whose response it did not get, with the same request id. But the id alone proves nothing:
the power sync of an Ironic conductor sends all its events, for months, with one id. So an event is a repeat only while
nothing else has been recorded for its server since, and only for minutes. A deferred event has the time it was
received; by that it is recognised forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from compute.actions.bases.event import EventParams, ReceivedEvent

WITHIN = timedelta(minutes=5)  # longer than any client repeats a request


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one server, as it was received."""

    server_id: str
    name: str
    tag: str
    status: str
    request_id: str
    user_id: str
    project_id: str
    received_at: datetime

    @property
    def said(self) -> tuple[str, str, str]:
        """What a repeated event has in common with the first one: request id, name, tag."""
        return self.request_id, self.name, self.tag


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded action of a server; `said` is None when it is not an event."""

    said: tuple[str, str, str] | None
    received_at: datetime


def received(event: Event) -> ReceivedEvent:
    """Return what the journal keeps of an event so that a repeat is recognised."""
    return ReceivedEvent(
        name=event.name, tag=event.tag, status=event.status, request_id=event.request_id,
        received_at=event.received_at,
    )  # fmt: skip


def entry(kept: dict[str, Any], started_at: datetime) -> Entry:
    """Return the entry of a journal row, from its action's params."""
    if "event" not in kept:
        return Entry(None, started_at)
    event = EventParams.load(kept).event
    return Entry((event.request_id, event.name, event.tag), event.received_at)


def new_events(events: Iterable[Event], record: Iterable[Entry]) -> list[Event]:
    """Return the events of one server that are not recorded. Both arguments are in order."""
    line, found = list(record), []
    for _, group in groupby(events, key=lambda event: (event.request_id, event.received_at)):
        request = _once(group)
        if _is_tail(request, line):
            continue
        on_record = {(one.said, one.received_at) for one in line}
        new = [event for event in request if (event.said, event.received_at) not in on_record]
        line += [Entry(event.said, event.received_at) for event in new]
        found += new
    return found


def _once(group: Iterable[Event]) -> list[Event]:
    """One event that a request has twice counts at its last position."""
    found: dict[tuple[str, str, str], Event] = {}
    for event in group:
        found.pop(event.said, None)
        found[event.said] = event
    return list(found.values())


def _is_tail(request: list[Event], line: list[Entry]) -> bool:
    """Whether the newest entries are exactly these events, received less than WITHIN ago."""
    tail = line[-len(request) :]
    return [one.said for one in tail] == [event.said for event in request] and all(
        abs(event.received_at - one.received_at) < WITHIN for event, one in zip(request, tail, strict=True)
    )
