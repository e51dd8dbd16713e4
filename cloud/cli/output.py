"""Output of servers and results: a table for people; JSON or bare values for programs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud.cli.requests import ServerState, signals
from cloud.cli.sanitize import plain

POWER = {0: "no state", 1: "running", 3: "paused", 4: "shutdown", 6: "crashed", 7: "suspended"}
COLOURS = {
    "ACTIVE": "green", "SHUTOFF": "dim", "ERROR": "bold red", "UNKNOWN": "yellow", "DELETED": "dim",
    "done": "green", "failed": "bold red", "refused": "bold red", "timed out": "yellow",
}  # fmt: skip
GRACE = "termination_grace_period_seconds"
WIDE = 10_000  # the width where the output is no terminal


def listed(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server as a row. One of a down cell has an id, a status, and little else."""
    row = {
        "id": server["id"], "name": server.get("name", ""), "status": server.get("status", ""),
        "task_state": server.get("OS-EXT-STS:task_state"),
        "power_state": POWER.get(server.get("OS-EXT-STS:power_state", 0), "no state"),
        "flavor": (server.get("flavor") or {}).get("original_name", ""), "networks": _networks(server),
    }  # fmt: skip
    host = server.get("OS-EXT-SRV-ATTR:host")
    return row | ({"host": host} if "OS-EXT-SRV-ATTR:host" in server else {})


def shown(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server with all its fields."""
    metadata = dict(server.get("metadata") or {})
    more = {
        "vm_state": server.get("OS-EXT-STS:vm_state"), "progress": server.get("progress"),
        "image": (server.get("image") or {}).get("id", ""), "project_id": server.get("tenant_id", ""),
        GRACE: server.get(GRACE, metadata.get(GRACE)), "shutdown": server.get("shutdown"), "metadata": metadata,
        "tags": server.get("tags", []), "locked": server.get("locked"), "description": server.get("description"),
        "created": server.get("created"), "updated": server.get("updated"), "fault": server.get("fault"),
    }  # fmt: skip
    return listed(server) | more


def many(rows: Sequence[dict[str, Any]], columns: Sequence[str], words: Namespace) -> None:
    """Print rows in the wanted format; by default, of `columns` those that any row has."""
    given = set().union(*rows) if rows else set(columns)
    columns = words.columns or [column for column in columns if column in given]
    rows = [{column: row.get(column) for column in columns} for row in rows]
    if words.format == "json":
        _json(rows)
    elif words.format == "value":
        for row in rows:
            print("\t".join(_cell(value) for value in row.values()))
    else:
        table = Table(box=box.ROUNDED, header_style="bold")
        for column in columns:
            table.add_column(column, no_wrap=column in ("id", "status"), overflow="fold")
        for row in rows:
            table.add_row(*(_coloured(value) for value in row.values()))
        _console().print(table)


def one(row: dict[str, Any], words: Namespace) -> None:
    """Print one row, one field per line."""
    row = {column: row.get(column) for column in words.columns or row}
    if words.format == "json":
        _json(row)
    elif words.format == "value":
        for value in row.values():
            print(_cell(value))
    else:
        table = Table(box=box.ROUNDED, header_style="bold")
        table.add_column("field")
        table.add_column("value", overflow="fold")
        for column, value in row.items():
            table.add_row(column, Text(_shutdown(value)) if column == "shutdown" and value else _coloured(value))
        _console().print(table)


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def _json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _coloured(value: Any) -> Text:
    text = _cell(value)
    return Text(text, style=COLOURS.get(text, ""))


def _cell(value: Any) -> str:
    """Return any value as one line of text."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{plain(str(key))}={_cell(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(inner) for inner in value)
    return plain(str(value))


def _shutdown(value: dict[str, Any]) -> str:
    """Return the state of a shutdown: its outcome as text, else its signals."""
    return plain(f"{ServerState(shutdown=value).words}") if value.get("outcome") is not None else signals(value)


def _networks(server: Mapping[str, Any]) -> dict[str, list[str]]:
    addresses = server.get("addresses") or {}
    return {network: [one.get("addr", "") for one in found] for network, found in addresses.items()}
