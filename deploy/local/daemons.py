"""Stopping background processes, and running commands on the global side."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence

from cloud.processes import Daemon, gone
from deploy.local import envfiles
from deploy.local.progress import Failed
from deploy.local.state import ROOT, State

COMMAND_SECONDS = 180
KILL_SECONDS = 5


def stop(daemons: Sequence[Daemon], seconds: float) -> list[str]:
    """SIGTERM them all, wait for them together; returns the names of those that had to be killed."""
    running = {daemon: pid for daemon in daemons if (pid := daemon.pid())}
    for daemon in running:
        daemon.send(signal.SIGTERM)
    late = [] if gone(list(running.values()), seconds) else [d for d in running if d.pid()]
    for sig in (signal.SIGQUIT, signal.SIGKILL):  # SIGQUIT is "now" to our workers, and as safe as SIGKILL
        for daemon in late:
            daemon.send(sig)
        if gone([running[daemon] for daemon in late], KILL_SECONDS):
            break
    for daemon in daemons:
        daemon.forget_if_dead()
    return [daemon.name for daemon in late]


def run(state: State, *argv: str, what: str, extra: dict[str, str] | None = None) -> str:
    """Run a command on the global side to its end; its output goes to log/commands.log too."""
    log = state.log("commands")
    environment = envfiles.process_environment(state, envfiles.global_file(state)) | (extra or {})
    with log.open("a") as out:
        out.write(f"--- {time.strftime('%F %T')} {' '.join(argv)}\n")
        out.flush()
        try:
            done = subprocess.run(
                argv, cwd=ROOT, env=environment, timeout=COMMAND_SECONDS, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise Failed(f"{what} took longer than {COMMAND_SECONDS} s", log=log) from exc
        out.write(done.stdout)
    if done.returncode != 0:
        raise Failed(
            f"{what} failed (exit code {done.returncode})", log=log, advice="Mend it and run `make up` again."
        )
    return done.stdout


def manage(state: State, *words: str, what: str = "", extra: dict[str, str] | None = None) -> str:
    """Run a `manage.py` command on the global side."""
    return run(
        state, python(), str(ROOT / "manage.py"), *words, what=what or f"manage.py {words[0]}", extra=extra
    )


def python() -> str:
    """The interpreter of the virtual environment."""
    return tool("python")


def tool(name: str) -> str:
    """A program of the virtual environment."""
    found = ROOT / ".venv/bin" / name
    if not found.exists():
        raise Failed(f"{found} is missing", advice="Run `deploy/bootstrap.sh`, or `make up`, which does.")
    return str(found)
