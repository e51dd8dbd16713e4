"""Stopping background processes, and the programs of the virtual environment."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from cloud.processes import Daemon, end_at_once, gone
from deploy.local.output import Failed
from deploy.local.state import ROOT

KILL_SECONDS = 5


def stop(daemons: Sequence[Daemon], seconds: float) -> list[str]:
    """Send SIGTERM to all and wait for them together. Return the names of those that had to be killed."""
    running = {daemon: pid for daemon in daemons if (pid := daemon.pid())}
    for daemon in running:
        daemon.send(signal.SIGTERM)
    late = [] if gone(list(running.values()), seconds) else [d for d in running if d.pid()]
    end_at_once(late, KILL_SECONDS)
    for daemon in daemons:
        daemon.forget_if_dead()
    return [daemon.name for daemon in late]


def python() -> str:
    """Return the virtual environment's interpreter."""
    return tool("python")


def tool(name: str) -> str:
    """Return the path of a program of the virtual environment. Raises Failed."""
    found = ROOT / ".venv/bin" / name
    if not found.exists():
        raise Failed(f"{found} is missing", advice="Run `deploy/bootstrap.sh`, or `make up`, which does.")
    return str(found)
