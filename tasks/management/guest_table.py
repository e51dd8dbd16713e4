"""Guests of a host that shuts down, as `manage.py host` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cells.management.tables import inner_table
from compute.hosts.guest_shutdown import GuestShutdown
from tasks.management.snapshot import ServiceSnapshot

COLUMNS = ("server", "name", "priority", "state", "left", "signals", "what happened")
BAR = 30  # characters
SHUTS_DOWN = "shutting down"


def page(one: ServiceSnapshot, width: int | None) -> list[str]:
    """Return the progress, then the guests that are not off yet or failed, then the others."""
    if not one.guests:
        return []
    shown = [line for line in one.guests if not line.is_over or line.state == "failed"]
    shown += [line for line in one.guests if line.is_over and line.state != "failed"]
    rows = [
        {"server": line.server_id, "name": line.name, "priority": line.priority, "state": line.state,
         "left": None if line.seconds_left is None else f"{line.seconds_left:.0f} s", "signals": line.signals or None,
         "what happened": line.words or None}
        for line in shown
    ]  # fmt: skip
    return ["", f"  {bar(one.guests)} {one.place.name}: {sentence(one.guests)}", *inner_table(COLUMNS, rows, width)]


def bar(lines: Sequence[GuestShutdown]) -> str:
    """Return a progress bar: how many of the guests are done."""
    done = BAR * sum(line.is_over for line in lines) // len(lines)
    return f"[{'#' * done}{'-' * (BAR - done)}]"


def sentence(lines: Sequence[GuestShutdown]) -> str:
    """Return the progress in words."""
    counted = Counter(line.state for line in lines)
    rest = (f"{counted[word]} {word}" for word in (SHUTS_DOWN, "waiting", "failed", "called off") if counted[word])
    return ", ".join([f"{counted['off']} of {len(lines)} guests off", *rest])


def said(line: GuestShutdown) -> str:
    """Return a line about a guest, without anything that changes by itself; "" while it waits."""
    name = f"{line.name} ({line.server_id})" if line.name else line.server_id
    if line.state == "off":
        return f"{name} is off: {line.words}"
    if line.is_over:
        return f"! {name} {'stays on' if line.state == 'called off' else 'could not be turned off'}: {line.words}"
    if line.state == SHUTS_DOWN and line.signals:
        return f"{name} shuts down: {line.signals} signal{'s' * (line.signals != 1)}"
    return ""


def with_time(line: GuestShutdown) -> str:
    """As `said`, with the seconds it has left."""
    text = said(line)
    return f"{text}, {line.seconds_left:.0f} s left" if text and line.seconds_left and not line.is_over else text


def ended(name: str, lines: Sequence[GuestShutdown], seconds: float) -> str:
    """Return the outcome for all guests in one sentence."""
    off = [line for line in lines if line.state == "off"]
    forced = sum("forced off" in line.words for line in off)
    rest = [line for line in lines if line.state != "off"]
    how = f", {forced} of them forced off" if forced else ""
    left = "".join(f"\n  {said(line)}" for line in rest)
    return f"{name}: {len(off)} of {len(lines)} guests are off after {seconds:.1f} s{how}.{left}"
