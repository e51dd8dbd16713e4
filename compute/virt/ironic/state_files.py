"""What a host stores about its bare-metal servers: one small file each, replaced atomically.

They are not stored on the node, because Ironic refuses every change of a node while it waits for a soft power off, and
that is when a timer runs. The files outlive the worker.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from compute.virt.shutdown_timer import ShutdownTimer


class StateFiles:
    """The timer of each server's last shutdown, and the mark of its last reboot."""

    def __init__(self, directory: Path) -> None:
        self._timers, self._marks = directory / "timers", directory / "reboots"
        for folder in (self._timers, self._marks):
            folder.mkdir(parents=True, exist_ok=True)

    def timer(self, server: str) -> ShutdownTimer | None:
        """Return the server's timer, or None."""
        return ShutdownTimer.load(_read(self._timers / server))

    def save_timer(self, server: str, timer: ShutdownTimer) -> None:
        """Store the timer in place of any other."""
        _write(self._timers / server, timer.text)

    def timers(self) -> dict[str, ShutdownTimer]:
        """Return the timers that run, by server."""
        known = {entry.name: self.timer(entry.name) for entry in self._timers.iterdir() if entry.name[0] != "."}
        return {server: timer for server, timer in known.items() if timer is not None and timer.runs}

    def boots(self, server: str) -> None:
        """Delete the timer of a server that boots: an old timer must not cut the power of a new start."""
        (self._timers / server).unlink(missing_ok=True)

    def mark(self, server: str) -> str:
        """Return the mark of the server's last reboot, or ""."""
        return _read(self._marks / server)

    def keep_mark(self, server: str, mark: str) -> None:
        """Store the mark in place of any other."""
        _write(self._marks / server, mark)

    def forget(self, server: str) -> None:
        """Delete both files of a server that is gone."""
        for folder in (self._timers, self._marks):
            (folder / server).unlink(missing_ok=True)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    new = file.with_name(f".{file.name}.{uuid4().hex}")
    new.write_text(text)
    new.replace(file)
