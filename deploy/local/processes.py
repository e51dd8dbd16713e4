"""Looking at processes by number, without mistaking a stranger or a zombie for the one we mean."""

from __future__ import annotations

import time
from pathlib import Path


def read_pid(file: Path) -> int | None:
    """The number in a pidfile, None if there is none."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def alive(pid: int, needle: str = "") -> bool:
    """A process that is no zombie and has `needle` in its command line."""
    proc = Path(f"/proc/{pid}")
    try:
        if (proc / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
            return False
        return needle.encode() in (proc / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def with_command(needle: str) -> list[int]:
    """Numbers of the processes that have `needle` in their command line."""
    numbers = (int(proc.name) for proc in Path("/proc").iterdir() if proc.name.isdigit())
    return [pid for pid in numbers if alive(pid, needle)]


def gone(pids: list[int], seconds: float) -> bool:
    """Wait until none of them is alive; False if one still is at the deadline."""
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
