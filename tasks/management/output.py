"""The output of `manage.py host`: a live page on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone
from rich.console import Group, RenderableType

from cloud.durations import format_duration
from cloud.terminal import Bars, Change, Rows, TerminalConsole, View, sanitize
from cloud.words import counted
from compute.hosts.drain_moves import UNDER_WAY, DrainMove, State
from compute.hosts.guest_shutdown import GuestShutdown
from tasks.management.outcome import Outcome
from tasks.management.snapshot import ServiceSnapshot, operations_to_json, to_json

FORMATS = ("table", "json", "jsonl")
HOSTS = ("host", "cell", "state", "since", "in progress", "waiting", "deadline", "requested by", "reason")
OPERATIONS = ("host", "server", "operation", "step", "state", "age", "ends within", "waits for")
MOVES = ("server", "state", "from", "to", "per cent", "why")
GUESTS = ("server", "name", "priority", "state", "left", "signals", "details")


class Output:
    """What a command prints, in one of FORMATS. Sentences and pages are for people: JSON has none."""

    def __init__(self, form: str, stream: OutputWrapper) -> None:
        self.form, self.console, self._stream = form, TerminalConsole(stream), stream
        self._snapshots: Sequence[ServiceSnapshot] = ()
        self._operations: dict[tuple[str, ...], str] = {}
        self._last: object = None
        self._view = View(self.console, lambda: render_page(self._snapshots), self._changes)

    def show(self, snapshots: Sequence[ServiceSnapshot]) -> None:
        """Show the present state, while hosts are followed."""
        self._snapshots = snapshots
        if self.form == "table":
            self._view.refresh()
        elif self.form == "jsonl":  # what changes by itself, as ages do, is no change
            now = [(about, change) for about, change, _ in describe(snapshots)]
            if now != self._last:
                self._last = now
                self.print_json(to_document(snapshots))

    def print_page(self, page: RenderableType) -> None:
        """Print a page once."""
        if self.form == "table":
            self.console.print(page)

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        if self.form == "table":
            self.console.say(sentence)

    def close(self) -> None:
        """End the live page; it stays."""
        self._view.close()

    def end(self, snapshots: Sequence[ServiceSnapshot], outcomes: Mapping[str, Outcome]) -> int:
        """Print the outcomes; return the exit code: the highest of all hosts."""
        self.close()
        for one in outcomes.values():
            self.say(one.sentence)
        if self.form != "table":
            ended = {name: one.snapshot for name, one in outcomes.items()}
            self.print_json(to_document([ended.get(one.name) or one for one in snapshots], outcomes))
        return max((one.code for one in outcomes.values()), default=0)

    def print_json(self, document: Any) -> None:
        """Print a document: on many lines, or for jsonl on one."""
        self._stream.write(json.dumps(document, indent=2 if self.form == "json" else None, default=str))
        self._stream.flush()

    def _changes(self) -> Iterator[Change]:
        at = f"{timezone.now():%H:%M:%S} "
        for about, change, line in describe(self._snapshots):
            yield about, change, line and at + line
        now = {_key(row): f"{row['host']}: {row['step']} of {row['server']} is over"
               for row in _other_operations(self._snapshots)}  # fmt: skip
        down = {one.name for one in self._snapshots if one.down}
        hidden = {key: line for key, line in self._operations.items() if key[0] in down}
        for key, line in self._operations.items():
            if key not in now and key not in hidden:
                yield ("over", *key), True, at + line
        self._operations = now | hidden


def to_document(snapshots: Sequence[ServiceSnapshot], outcomes: Mapping[str, Outcome] | None = None) -> dict[str, Any]:
    """Return what `-f json` prints."""
    ended = {name: {"code": one.code, "sentence": one.sentence} for name, one in (outcomes or {}).items()}
    return {"at": timezone.now(), "hosts": [to_json(one) | {"ended": ended.get(one.name)} for one in snapshots]}


def render_page(snapshots: Sequence[ServiceSnapshot]) -> Group:
    """Return the table of hosts, and the tables of everything in progress there."""
    return Group(Rows(HOSTS, [_host_row(one) for one in snapshots]), *render_details(snapshots, OPERATIONS))


def render_details(snapshots: Sequence[ServiceSnapshot], columns: Sequence[str]) -> Iterator[RenderableType]:
    """Yield tables: the operations with these columns, then of each host its moves and its guests."""
    rows = _other_operations(snapshots)
    if rows:
        yield from ("", Rows(columns, [_operation_row(row) for row in rows], indent=2))
    for one in snapshots:
        if one.moves.lines:
            moves = [
                {"server": line.server_id, "state": line.state, "from": line.at, "to": line.to or None,
                 "per cent": line.percent if line.state in UNDER_WAY else None, "why": line.why or None}
                for line in (*one.moves.under_way, *one.moves.blocked)
            ]  # fmt: skip
            remaining = len(one.moves.coming) or len(one.moves.lines) - len(one.moves.away)
            share = 1 - remaining / len(one.moves.lines)
            yield from ("", Bars([(one.name, share, one.moves.sentence)]), *([Rows(MOVES, moves, 2)] if moves else ()))
        if one.guests:
            guests = sorted(one.guests, key=lambda line: line.is_over and line.state != "failed")
            share = sum(line.is_over for line in guests) / len(guests)
            yield from ("", Bars([(one.name, share, count_guests(guests))]),
                        Rows(GUESTS, [_guest_row(line) for line in guests], 2))  # fmt: skip


def describe(snapshots: Sequence[ServiceSnapshot]) -> Iterator[Change]:
    """Yield a line for each host, move, guest and operation. What changes by itself is not in the change."""
    for one in snapshots:
        yield one.name, (text := summarize(one)), text
        for move in one.moves.lines:
            text = describe_move(move)
            yield (one.name, move.server_id), text, text and f"{one.name}: {text}"
        for guest in one.guests:
            text, left = describe_guest(guest), guest.seconds_left
            more = f", {left:.0f} s left" if left and not guest.is_over else ""
            yield (one.name, "guest", guest.server_id), text, text and f"{one.name}: {text}{more}"
    for row in _other_operations(snapshots):
        left = row["ends_within"]
        ends = f", ends within {format_duration(left)}" if left is not None else ""
        line = f"{row['host']}: {row['operation']} of {row['server']} is {row['state']}: {_waits_for(row)}{ends}"
        yield _key(row), row["state"], line


def summarize(one: ServiceSnapshot) -> str:
    """Return one line about a host, without anything that changes by itself."""
    if one.down and not one.guests:
        return f"{one.name} unknown: {one.location.cell.name} does not answer ({one.down})"
    parts = [] if one.down else [f"{one.name} {one.state}"]
    if one.state in ("asked", "draining", "drained", "stopped"):
        parts.append(f"{one.in_progress} in progress, {one.waiting} waiting")
    if one.moves.lines:
        parts.append(one.moves.sentence)
    if one.guests:
        parts.append(count_guests(one.guests))
    return ": ".join(parts)


def describe_move(move: DrainMove) -> str:
    """Return a line about a server that leaves or returns; "" while it waits for its turn."""
    if move.is_blocked:
        return f"! {move.server_id} stays where it is: {move.why}"
    if move.state in UNDER_WAY and move.at != move.to:
        return f"{move.server_id} leaves {move.at}" + (f" for {move.to}" if move.to else "")
    return f"{move.server_id} is at {move.to}" if move.state in (*UNDER_WAY, State.AWAY) else ""


def describe_guest(guest: GuestShutdown) -> str:
    """Return a line about a guest that is shut down; "" while it waits for its turn."""
    name = f"{sanitize(guest.name)} ({guest.server_id})" if guest.name else guest.server_id
    if guest.state == "off":
        return f"{name} is off: {guest.words}"
    if guest.is_over:
        return f"! {name} {'stays on' if guest.state == 'called off' else 'could not be turned off'}: {guest.words}"
    if guest.state == "shutting down" and guest.signals:
        return f"{name} shuts down: {counted(guest.signals, 'signal')}"
    return ""


def count_guests(guests: Sequence[GuestShutdown]) -> str:
    """Return how many guests are in which state."""
    found = Counter(line.state for line in guests)
    rest = [f"{found[state]} {state}" for state in ("shutting down", "waiting", "failed", "called off") if found[state]]
    return ", ".join([f"{found['off']} of {len(guests)} guests off", *rest])


def _host_row(one: ServiceSnapshot) -> dict[str, Any]:
    service = one.service
    row = {"host": one.name, "cell": one.location.cell.name, "state": one.state, "reason": one.down or None}
    if service is None:
        return row
    since = one.age(service.drained_at or service.draining_since or service.ended_at or service.drain_asked_at)
    late = one.age(service.drain_deadline)
    return row | {
        "since": None if since is None else format_duration(since),
        "in progress": one.in_progress, "waiting": one.waiting,
        "deadline": None if late is None else f"in {format_duration(-late)}" if late < 0 else "over",
        "requested by": service.drain_by or None, "reason": service.drain_reason or None,
    }  # fmt: skip


def _other_operations(snapshots: Sequence[ServiceSnapshot]) -> list[dict[str, Any]]:
    """Return the operations in progress that are not in another table, a row each.

    Moves from a host that takes requests, and guests that shut down with their host, have their own.
    """
    shown = {move.request_id for one in snapshots if one.service and one.service.takes_requests
             for move in one.moves.under_way}  # fmt: skip
    shown |= {guest.request_id for one in snapshots for guest in one.guests}
    return [row for row in operations_to_json(snapshots) if row["request_id"] not in shown]


def _operation_row(row: dict[str, Any]) -> dict[str, Any]:
    left = row["ends_within"]
    return row | {"age": format_duration(row["age"]), "waits for": _waits_for(row),
                  "ends within": None if left is None else format_duration(left)}  # fmt: skip


def _guest_row(line: GuestShutdown) -> dict[str, Any]:
    left = None if line.seconds_left is None else f"{line.seconds_left:.0f} s"
    return {"server": line.server_id, "name": line.name, "priority": line.priority, "state": line.state,
            "left": left, "signals": line.signals or None, "details": line.words or None}  # fmt: skip


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["host"], row["request_id"], row["server"], row["step"])


def _waits_for(row: dict[str, Any]) -> str:
    return f"{row['waits_for']} (! {row['blocker']})" if row["blocker"] else str(row["waits_for"])
