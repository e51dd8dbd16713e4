"""Output of servers and results: a table for people; JSON or bare values for programs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from cloud.cli.requests import ServerState, format_signals
from cloud.terminal import Fields, Rows, TerminalConsole, format_value

POWER = {0: "no state", 1: "running", 3: "paused", 4: "shutdown", 6: "crashed", 7: "suspended"}
GRACE = "termination_grace_period_seconds"


def to_row(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server as a row. One of a down cell has an id, a status, and little else."""
    addresses = server.get("addresses") or {}
    row = {
        "id": server["id"], "name": server.get("name", ""), "status": server.get("status", ""),
        "task_state": server.get("OS-EXT-STS:task_state"),
        "power_state": POWER.get(server.get("OS-EXT-STS:power_state", 0), "no state"),
        "flavor": (server.get("flavor") or {}).get("original_name", ""),
        "networks": {network: [one.get("addr", "") for one in found] for network, found in addresses.items()},
    }  # fmt: skip
    host = server.get("OS-EXT-SRV-ATTR:host")
    return row | ({"host": host} if "OS-EXT-SRV-ATTR:host" in server else {})


def to_full_row(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server with all its fields."""
    metadata = dict(server.get("metadata") or {})
    more = {
        "vm_state": server.get("OS-EXT-STS:vm_state"), "progress": server.get("progress"),
        "image": (server.get("image") or {}).get("id", ""), "project_id": server.get("tenant_id", ""),
        GRACE: server.get(GRACE, metadata.get(GRACE)), "shutdown": server.get("shutdown"), "metadata": metadata,
        "tags": server.get("tags", []), "locked": server.get("locked"), "description": server.get("description"),
        "created": server.get("created"), "updated": server.get("updated"), "fault": server.get("fault"),
    }  # fmt: skip
    return to_row(server) | more


def print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], options: Namespace) -> None:
    """Print rows in the requested format; by default, of `columns` those that any row has."""
    present = set().union(*rows) if rows else set(columns)
    columns = options.columns or [column for column in columns if column in present]
    rows = [{column: row.get(column) for column in columns} for row in rows]
    if options.format == "json":
        print(json.dumps(rows, indent=2))
    elif options.format == "value":
        for row in rows:
            print("\t".join(format_value(value, none="") for value in row.values()))
    else:
        TerminalConsole(sys.stdout).print(Rows(columns, rows))


def print_row(row: dict[str, Any], options: Namespace) -> None:
    """Print one row, one field per line."""
    row = {column: row.get(column) for column in options.columns or row}
    if options.format == "json":
        print(json.dumps(row, indent=2))
    elif options.format == "value":
        for value in row.values():
            print(format_value(value, none=""))
    else:
        shutdown = row.get("shutdown")
        if shutdown:  # its outcome, else its signals
            ended = shutdown.get("outcome") is not None
            row["shutdown"] = ServerState(shutdown=shutdown).text if ended else format_signals(shutdown)
        TerminalConsole(sys.stdout).print(Fields(list(row.items())))
