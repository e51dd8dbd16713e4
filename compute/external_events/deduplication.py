"""Which events are on record already.

A service repeats a request whose answer it did not get, under the same request id. But one id is no proof: the power
sync of an Ironic conductor sends all its events, for months, under one. So an event is a repeat only while nothing
else has been recorded of its server since, and for minutes. An event that was kept for later carries the moment it
was received, and is recognised by that for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

WITHIN = timedelta(minutes=5)  # a client that repeats does so for less


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
        """What a repeat of it says, too."""
        return self.request_id, self.name, self.tag


@dataclass(frozen=True, slots=True)
class Entry:
    """Something on record of a server; `said` is None when it is no event."""

    said: tuple[str, str, str] | None
    received_at: datetime


def params(event: Event) -> dict[str, Any]:
    """What the journal keeps of an event, to know it by."""
    return {
        "name": event.name, "tag": event.tag, "status": event.status, "request_id": event.request_id,
        "received_at": event.received_at.isoformat(),
    }  # fmt: skip


def entry(kept: dict[str, Any], started_at: datetime) -> Entry:
    """A line of the journal, by its action's params."""
    event = kept.get("event")
    if not event:
        return Entry(None, started_at)
    said = (event["request_id"], event["name"], event["tag"])
    return Entry(said, datetime.fromisoformat(event["received_at"]))


def new_events(events: Iterable[Event], record: Iterable[Entry]) -> list[Event]:
    """Those of one server, in order, that are not on its record, which is in order, too."""
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
    """What one request says twice of a server counts where it says it last."""
    found: dict[tuple[str, str, str], Event] = {}
    for event in group:
        found.pop(event.said, None)
        found[event.said] = event
    return list(found.values())


def _is_tail(request: list[Event], line: list[Entry]) -> bool:
    """Whether the newest entries say just this, and were received a moment ago."""
    tail = line[-len(request) :]
    return [one.said for one in tail] == [event.said for event in request] and all(
        abs(event.received_at - one.received_at) < WITHIN for event, one in zip(request, tail, strict=True)
    )
