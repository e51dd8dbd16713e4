"""Processes by pid; a recycled pid or a zombie is not mistaken for the process."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from cloud.polling import wait_until


@dataclass(frozen=True, slots=True)
class Daemon:
    """One background process. `needle` is a part of its command line that no other process has."""

    name: str
    pidfile: Path
    needle: str
    log: Path

    def pid(self) -> int | None:
        """Return its pid while it runs, else None; never the pid of another process that got its number."""
        pid = read_pid(self.pidfile)
        return pid if pid and alive(pid, self.needle) else None

    def is_there(self) -> bool:
        """Return whether it runs or is starting: a daemon has its command line before it has its pidfile."""
        return self.pid() is not None or bool(with_command(self.needle))

    def forget_if_dead(self) -> bool:
        """Remove the pidfile of a dead one: celery and gunicorn refuse to start over a recycled pid."""
        if self.pid() is not None:
            return False
        self.pidfile.unlink(missing_ok=True)
        return True

    def send(self, sig: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if pid := self.pid():
            kill([pid], sig)


def read_pid(file: Path) -> int | None:
    """Return the number in a pidfile; None when there is none."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def alive(pid: int, needle: str = "") -> bool:
    """Return whether the process runs, is no zombie and has `needle` in its command line; NUL ends each argument."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        return needle in "\0".join([*process.cmdline(), ""])
    except psutil.Error:
        return False


def with_command(needle: str) -> list[int]:
    """Return the pids of the processes that have `needle` in their command line."""
    return [pid for pid in psutil.pids() if alive(pid, needle)]


def kill(pids: Iterable[int], sig: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(sig)


def end_at_once(daemons: Collection[Daemon], seconds: float) -> None:
    """Send SIGQUIT, on which our workers exit at once, then SIGKILL, which is as safe and says less in the log."""
    for sig in (signal.SIGQUIT, signal.SIGKILL):
        running = [pid for daemon in daemons if (pid := daemon.pid())]
        kill(running, sig)
        if gone(running, seconds):
            break


def gone(pids: Collection[int], seconds: float) -> bool:
    """Wait until no process is alive; False when one still is after `seconds`."""
    return wait_until(lambda: not any(alive(pid) for pid in pids), seconds, 0.02)
