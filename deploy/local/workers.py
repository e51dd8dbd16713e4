"""The Celery workers: one node each for the scheduler, every cell's conductor and every host."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from cloud.processes import Daemon
from deploy.local import envfiles
from deploy.local.manage_commands import manage
from deploy.local.output import Failed
from deploy.local.state import CELLS, StackState
from tasks import worker_process as processes

READY_SECONDS = 90


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """One worker; `name` is also the host name of its service record."""

    name: str
    role: str


def nodes(state: StackState) -> list[LocalWorker]:
    """Return every worker of a cloud."""
    conductors = [LocalWorker(f"conductor-{cell}", "conductor") for cell in CELLS]
    return [LocalWorker("scheduler", "scheduler"), *conductors, *(LocalWorker(host, "host") for host in state.hosts)]


def cell_of(state: StackState, node: LocalWorker) -> str:
    """Return the cell whose database has the service record of a worker."""
    if node.role == "scheduler":
        return "cell0"
    return state.hosts[node.name] if node.role == "host" else node.name.removeprefix("conductor-")


def process(state: StackState, node: LocalWorker) -> processes.WorkerNode:
    """Return a worker's node, which knows the paths of its files."""
    return processes.WorkerNode(node.name, envfiles.node_file(state, node.name), state.path("run"), state.path("log"))


def daemon(state: StackState, node: LocalWorker) -> Daemon:
    """Return the worker's process."""
    return process(state, node).daemon


def by_hand(state: StackState) -> list[Daemon]:
    """Return the workers that an operator started from this state folder with `manage.py host start`."""
    known = {node.name for node in nodes(state)}
    names = sorted({pidfile.stem for pidfile in state.path("run").glob("*.pid")} - known)
    found = [daemon(state, LocalWorker(name, "host")) for name in names]
    return [one for one in found if one.pid()]


def start(state: StackState) -> list[LocalWorker]:
    """Start the workers that do not run, in parallel, and return them. Raises Failed."""
    try:
        started = processes.start([process(state, node) for node in nodes(state)], state.directory)
    except processes.NotStarted as exc:
        raise Failed(str(exc), log=exc.log) from exc
    names = {node.name for node in started}
    return [node for node in nodes(state) if node.name in names]


def wait_until_ready(state: StackState, started: list[LocalWorker], since: float) -> None:
    """Wait until every worker has a service record with a heartbeat after `since` (monotonic clock).

    Raises Failed, at once for a worker that ended.
    """

    def up() -> set[str]:
        asked = time.monotonic()
        # a heartbeat before the start is from an earlier incarnation
        return {row["host"] for row in services(state) if _beat_within(row, asked - since)}

    try:
        processes.wait_until_up([process(state, node) for node in started], up, READY_SECONDS)
    except processes.NotStarted as exc:
        raise Failed(str(exc), log=exc.log) from exc


def _beat_within(row: dict[str, Any], seconds: float) -> bool:
    there = row["state"] == "up" or row["forced_down"]  # a forced-down service counts as started, too
    return there and row["age"] is not None and row["age"] < seconds


def services(state: StackState) -> list[dict[str, Any]]:
    """Return every service record: binary, host, cell, state, and the age of its last heartbeat in seconds."""
    rows: list[dict[str, Any]] = json.loads(manage(state, "service_list", "--json"))
    return rows
