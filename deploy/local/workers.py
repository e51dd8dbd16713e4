"""The Celery workers: one node each for the scheduler, every cell's conductor and every host."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from deploy.local import envfiles
from deploy.local.daemons import Daemon, manage, tool
from deploy.local.progress import Failed
from deploy.local.state import CELLS, HOSTS, ROOT, State

START_SECONDS = 90
READY_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Node:
    """One worker; `name` is also the host name of its service record."""

    name: str
    role: str


NODES = (
    Node("scheduler", "scheduler"),
    *(Node(f"conductor-{cell}", "conductor") for cell in CELLS),
    *(Node(host, "host") for host in HOSTS),
)


def daemon(state: State, node: Node) -> Daemon:
    """The worker's process."""
    pidfile = state.pidfile(node.name)
    return Daemon(node.name, pidfile, f"--pidfile={pidfile}", state.log(node.name))


def start(state: State) -> list[Node]:
    """Start the workers that do not run, all at once; returns them."""
    nodes = [node for node in NODES if daemon(state, node).forget_if_dead()]
    launches = [(node, _launch(state, node)) for node in nodes]
    deadline = time.monotonic() + START_SECONDS
    for node, launch in launches:
        try:
            launch.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as exc:
            launch.kill()
            raise Failed(f"{node.name} did not start in {START_SECONDS} s", log=state.log(node.name)) from exc
        said = state.log(f"{node.name}.start")
        if "FAILED" in said.read_text(errors="replace"):  # its exit code is 0 all the same
            raise Failed(f"celery multi could not start {node.name}", log=said)
    return nodes


def wait_until_ready(state: State, nodes: list[Node], since: float) -> None:
    """Wait until every one of them has a beating service record. A worker that ended says why at once."""
    started, waiting = time.monotonic(), {node.name for node in nodes}
    while waiting:
        asked = time.monotonic()
        # a beat older than the start is its last life's
        waiting -= {row["host"] for row in services(state) if _beat_within(row, asked - since)}
        for node in nodes:
            ended = node.name in waiting and daemon(state, node).pid() is None
            # celery multi returns a moment before the detached worker has written its pidfile
            if ended and time.monotonic() - started > 15:
                raise Failed(f"{node.name} ended while starting", log=state.log(node.name))
        if waiting and time.monotonic() - started > READY_SECONDS:
            late = sorted(waiting)[0]
            raise Failed(
                f"{', '.join(sorted(waiting))}: no heartbeat after {READY_SECONDS} s", log=state.log(late)
            )
        if waiting:
            time.sleep(0.5)


def _beat_within(row: dict[str, Any], seconds: float) -> bool:
    return row["state"] == "up" and row["age"] is not None and row["age"] < seconds


def services(state: State) -> list[dict[str, Any]]:
    """Every service record: binary, host, cell, state, and the age of its last beat in seconds."""
    rows: list[dict[str, Any]] = json.loads(manage(state, "service_list", "--json"))
    return rows


def _launch(state: State, node: Node) -> subprocess.Popen[bytes]:
    command = [
        tool("celery"), "multi", "start", f"{node.name}@stillwater", "-A", "cloud.celery",
        f"--pidfile={state.path('run', '%n.pid')}", f"--logfile={state.path('log', '%n.log')}",
        "--loglevel=INFO", "-P", "threads",
        "--without-mingle", "--without-gossip",
    ]  # fmt: skip
    environment = envfiles.process_environment(state, envfiles.node_file(state, node.name))
    with state.log(f"{node.name}.start").open("wb") as out:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
