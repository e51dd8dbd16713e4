"""Servers that leave a host or come back, as `manage.py host` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cells.management.tables import inner_table
from compute.hosts.drain_moves import UNDER_WAY, DrainMove, State
from tasks.management import snapshot
from tasks.management.snapshot import ServiceSnapshot

COLUMNS = ("server", "state", "from", "to", "per cent", "why")


def page(one: ServiceSnapshot, width: int | None) -> list[str]:
    """Return the progress, then the servers that are on the way and those that are blocked."""
    if not one.moves.lines:
        return []
    rows = [
        {"server": line.server_id, "state": line.state, "from": line.at, "to": line.to or "-",
         "per cent": line.percent if line.state in UNDER_WAY else None, "why": line.why or None}
        for line in (*one.moves.under_way, *one.moves.blocked)
    ]  # fmt: skip
    table = inner_table(COLUMNS, rows, width) if rows else []
    return ["", f"  {one.place.name}: {one.moves.sentence}", *table]


def operations(looks: Sequence[ServiceSnapshot]) -> list[dict[str, Any]]:
    """Return the other operations in progress, a row each.

    Moves from a host that takes requests, and guests that shut down with their host, are in tables of their own.
    """
    ours = {line.request_id for one in looks if one.service and one.service.takes_requests
            for line in one.moves.under_way}  # fmt: skip
    ours |= {line.request_id for one in looks for line in one.guests}
    return [row for row in snapshot.operations(looks) if row["request_id"] not in ours]


def said(line: DrainMove) -> str:
    """Return a line about a server, without anything that changes by itself; "" while it waits for its turn."""
    if line.is_blocked:
        return f"! {line.server_id} stays where it is: {line.why}"
    if line.state in UNDER_WAY and line.at != line.to:
        return f"{line.server_id} leaves {line.at}" + (f" for {line.to}" if line.to else "")
    return f"{line.server_id} is at {line.to}" if line.state in (*UNDER_WAY, State.AWAY) else ""
