"""Processes that still belong to a cloud: their command line or their env file names its state folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deploy.local.state import StackState

# The names of our programs. A user's `tail -f var/log/api.log` is not ours.
OURS = (
    "python",
    "redis-server",
    "celery",
    "gunicorn",
    "libvirtd",
    "virtlogd",
    "qemu-system",
    "sh",
    "dnsmasq",
)


@dataclass(frozen=True, slots=True)
class Leftover:
    """One process of a cloud that still runs."""

    pid: int
    command: str


def find(state: StackState) -> list[Leftover]:
    """Return every such process except this one and its ancestors."""
    marks = (f"{state.directory}/".encode(), f"STILLWATER_ENV_FILE={state.directory}/".encode())
    skip = _ancestors(os.getpid())
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit() and int(proc.name) not in skip and _belongs(proc, marks):
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(Leftover(int(proc.name), command.strip()[:160]))
    return found


def _belongs(proc: Path, marks: tuple[bytes, bytes]) -> bool:
    in_command, in_environment = marks
    try:
        command = (proc / "cmdline").read_bytes()
        program = Path(command.split(b"\0", 1)[0].decode(errors="replace")).name
        if not program.startswith(OURS):
            return False
        return in_command in command or in_environment in (proc / "environ").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return False


def _ancestors(pid: int) -> set[int]:
    """Return the process and its ancestors, whose command lines may name the folder."""
    chain = set()
    while pid > 1 and pid not in chain:
        chain.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            break
    return chain
