"""The output while hosts are followed: a live table, lines, or JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from cells.management.tables import inner_table, table_lines, width_of
from compute.models import Service
from tasks.management import guest_table, migration_table, snapshot
from tasks.management.snapshot import ServiceSnapshot

FORMATS = ("table", "json", "jsonl")
HOSTS = ("host", "cell", "state", "since", "in progress", "waiting", "deadline", "wanted by", "reason")
OPERATIONS = ("host", "server", "operation", "step", "state", "age", "ends within", "waits for")
UP_AND_CLEAR = "\x1b[{lines}F\x1b[J"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one host: the command's exit code and a sentence."""

    host: str
    code: int
    sentence: str
    look: ServiceSnapshot | None = None  # the last look, where the service record does not show it


class Output:
    """The base class: prints sentences and single tables. The others differ in what they print when."""

    def __init__(self, out: OutputWrapper) -> None:
        self.out = out

    def show(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Show the current state."""

    def once(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Show the state once, when nothing is followed."""
        self.out.write("\n".join([*page(looks, width_of(self.out)), "", ""]))

    def say(self, sentence: str) -> None:
        """Print a sentence for people, between two tables."""
        self.out.write(sentence)
        self.out.flush()

    def end(self, looks: Sequence[ServiceSnapshot], ends: Sequence[Outcome]) -> None:
        """Print the outcomes, one sentence a host."""
        for one in ends:
            self.say(one.sentence)


class LiveOutput(Output):
    """Output to a terminal: one table, written over itself."""

    def __init__(self, out: OutputWrapper) -> None:
        super().__init__(out)
        self._lines = 0

    def show(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Write the table over the last one."""
        width, height = shutil.get_terminal_size()
        lines = [piece for line in page(looks, width - 1) for piece in _wrapped(line, width - 1)]
        if len(lines) > height - 2:
            lines = [*lines[: height - 3], f"… and {len(lines) - height + 3} lines more"]
        over = UP_AND_CLEAR.format(lines=self._lines) if self._lines else ""
        self.out.write(over + "\n".join(lines))
        self.out.flush()
        self._lines = len(lines)

    def say(self, sentence: str) -> None:
        """Print under the table, which stays; the next table begins below."""
        super().say(sentence)
        self._lines = 0


class LineOutput(Output):
    """Output to something that is no terminal: one line for each change."""

    def __init__(self, out: OutputWrapper) -> None:
        super().__init__(out)
        self._said: dict[str, str] = {}
        self._operations: dict[tuple[str, ...], dict[str, Any]] = {}

    def show(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Print what is new since the last call."""
        for one in looks:
            said = summary(one)
            if self._said.get(one.place.name) != said:
                self._said[one.place.name] = said
                self._say(said)
            self._moves(one)
            self._guests(one)
        self._changes({key(row): row for row in migration_table.operations(looks)})

    def _moves(self, one: ServiceSnapshot) -> None:
        for line in one.moves.lines:
            said = migration_table.said(line)
            name = f"{one.place.name} {line.server_id}"
            if said and self._said.get(name) != said:
                self._say(f"{one.place.name}: {said}")
            self._said[name] = said

    def _guests(self, one: ServiceSnapshot) -> None:
        for line in one.guests:
            name = f"{one.place.name} guest {line.server_id}"
            said = guest_table.said(line)
            if said and self._said.get(name) != said:
                self._say(f"{one.place.name}: {guest_table.with_time(line)}")
            self._said[name] = said

    def _changes(self, now: dict[tuple[str, ...], dict[str, Any]]) -> None:
        for name, row in now.items():
            if name not in self._operations:
                self._say(f"{row['host']}: {_operation(row)}")
        for name, row in self._operations.items():
            if name not in now:
                self._say(f"{row['host']}: {row['step']} of {row['server']} is over")
        self._operations = now

    def _say(self, text: str) -> None:
        self.out.write(f"{timezone.now():%H:%M:%S} {text}")
        self.out.flush()


class JsonOutput(Output):
    """One document, at the end."""

    def once(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Print nothing: the document has it all."""

    def say(self, sentence: str) -> None:
        """Print nothing: sentences are not for scripts."""

    def end(self, looks: Sequence[ServiceSnapshot], ends: Sequence[Outcome]) -> None:
        """Print the document: each host with its outcome."""
        self.out.write(json.dumps(document(looks, ends), indent=2, default=str))


class JsonLinesOutput(JsonOutput):
    """One document a line: for every change, then the outcome."""

    def __init__(self, out: OutputWrapper) -> None:
        super().__init__(out)
        self._last: Any = None

    def show(self, looks: Sequence[ServiceSnapshot]) -> None:
        """Print a document after a change. What changes by itself, as ages do, is no change."""
        now = [
            (summary(one), [key(row) for row in snapshot.operations([one])],
             [migration_table.said(line) for line in one.moves.lines], [guest_table.said(line) for line in one.guests])
            for one in looks
        ]  # fmt: skip
        if now != self._last:
            self._last = now
            self._write(document(looks))

    def end(self, looks: Sequence[ServiceSnapshot], ends: Sequence[Outcome]) -> None:
        """Print the last document, which has `ended`."""
        self._write(document(looks, ends))

    def _write(self, found: Any) -> None:
        self.out.write(json.dumps(found, default=str))
        self.out.flush()


def of(form: str, out: OutputWrapper) -> Output:
    """Return the output for a format; a table is live on a terminal only."""
    if form == "table":
        return LiveOutput(out) if out.isatty() else LineOutput(out)
    return JsonOutput(out) if form == "json" else JsonLinesOutput(out)


def document(looks: Sequence[ServiceSnapshot], ends: Sequence[Outcome] = ()) -> dict[str, Any]:
    """Return what `-f json` prints."""
    ended = {end.host: {"code": end.code, "sentence": end.sentence} for end in ends}
    hosts = [snapshot.facts(one) | {"ended": ended.get(one.place.name)} for one in looks]
    return {"at": timezone.now(), "hosts": hosts}


def page(looks: Sequence[ServiceSnapshot], width: int | None = None) -> list[str]:
    """Return the table of hosts, and the tables of everything in progress there. No table is wider than `width`."""
    lines = table_lines(HOSTS, [_row(one) for one in looks], width)
    rows = migration_table.operations(looks)
    if rows:
        lines += ["", *inner_table(OPERATIONS, operations_shown(rows), width)]
    for one in looks:
        lines += migration_table.page(one, width) + guest_table.page(one, width)
    return lines


def summary(one: ServiceSnapshot) -> str:
    """Return one line about a host, without anything that changes by itself."""
    if one.down and one.guests:
        return f"{one.place.name}: {guest_table.sentence(one.guests)}"
    if one.down:
        return f"{one.place.name} unknown: {one.place.cell.name} does not answer ({one.down})"
    words = [f"{one.place.name} {one.state}"]
    if one.state in ("asked", "draining", "drained", "stopped"):
        words.append(f"{snapshot.in_progress(one)} in progress, {one.waiting} waiting")
    if one.moves.lines:
        words.append(one.moves.sentence)
    if one.guests:
        words.append(guest_table.sentence(one.guests))
    return ": ".join(words)


def operations_shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return operations as a table for people shows them."""
    return [
        row | {"age": span(row["age"]), "ends within": span(row["ends_within"]), "waits for": _waits_for(row)}
        for row in rows
    ]


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """Return what tells one operation's line from another's."""
    return (row["host"], row["request_id"], row["server"], row["step"], row["state"])


def span(seconds: float | None) -> str | None:
    """Return seconds as people say them: 5 min 03 s."""
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _row(one: ServiceSnapshot) -> dict[str, Any]:
    service = one.service
    row: dict[str, Any] = {"host": one.place.name, "cell": one.place.cell.name, "state": one.state}
    if service is None:
        return row | {"reason": one.down or None}
    since = service.drained_at or service.draining_since or service.ended_at or service.drain_asked_at
    return row | {
        "since": span((one.at - since).total_seconds()) if since else None,
        "in progress": snapshot.in_progress(one), "waiting": one.waiting, "deadline": _deadline(one, service),
        "wanted by": service.drain_by or None, "reason": service.drain_reason or None,
    }  # fmt: skip


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line that is too long for the terminal."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)


def _deadline(one: ServiceSnapshot, service: Service) -> str | None:
    if service.drain_deadline is None:
        return None
    left = (service.drain_deadline - one.at).total_seconds()
    return f"in {span(left)}" if left > 0 else "over"


def _waits_for(row: dict[str, Any]) -> str:
    return f"{row['waits_for']} (! {row['blocker']})" if row["blocker"] else str(row["waits_for"])


def _operation(row: dict[str, Any]) -> str:
    left = f", ends within {span(row['ends_within'])}" if row["ends_within"] is not None else ""
    return f"{row['operation']} of {row['server']} is {row['state']}: {_waits_for(row)}{left}"
