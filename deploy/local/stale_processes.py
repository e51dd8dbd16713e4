"""Processes that still belong to a cloud: their command line or their env file names its state folder."""

from __future__ import annotations

from pathlib import Path

import psutil

from deploy.local.state import StackState

# The names of our programs. A user's `tail -f var/log/api.log` is not ours.
OURS = ("python", "redis-server", "celery", "gunicorn", "libvirtd", "virtlogd", "qemu-system", "sh", "dnsmasq")


def find(state: StackState) -> dict[int, str]:
    """Return pid and command line of every such process except this one and its ancestors."""
    own = psutil.Process()
    skip = {own, *own.parents()}  # their command lines may name the folder
    found = {process.pid: _command(process, state) for process in psutil.process_iter() if process not in skip}
    return {pid: command[:160] for pid, command in found.items() if command}


def _command(process: psutil.Process, state: StackState) -> str:
    """Return the command line of a process of this cloud; empty for every other one."""
    folder = f"{state.directory}/"
    try:
        words = process.cmdline() or [""]
        if not Path(words[0]).name.startswith(OURS):
            return ""
        ours = folder in "\0".join(words) or process.environ().get("STILLWATER_ENV_FILE", "").startswith(folder)
        return " ".join(words) if ours else ""
    except (psutil.Error, OSError):  # it has ended, or belongs to another user
        return ""
