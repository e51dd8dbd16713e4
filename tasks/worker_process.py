"""One worker process under `celery multi`: its command lines, environment, pidfile and log; starting and ending it.

Uses no Django, so that `make up`, `manage.py host` and a person with `celery multi` start the same process.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cloud.env import GRACEFUL_SHUTDOWN_TIMEOUTS, ROOT
from cloud.processes import Daemon, alive, end_at_once, with_command

ROLES = ("host", "conductor", "scheduler")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
START_SECONDS = 90
FORK_SECONDS = 3  # a process that is not there after these has ended
MARGIN = 15.0  # seconds beyond its graceful timeout that a process may take to record and to close
NOW_SECONDS = 5.0


class NotStarted(Exception):
    """A worker did not start: the sentence says which one, the file `log` says why."""

    def __init__(self, sentence: str, log: Path) -> None:
        super().__init__(sentence)
        self.log = log


class BadEnvFile(ValueError):
    """An env file cannot be read; the sentence says where."""


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """One worker of a machine; `name` is the host of its service record, and in the names of its files."""

    name: str
    env_file: Path
    run: Path
    logs: Path

    @property
    def log(self) -> Path:
        """The log file."""
        return self.logs / f"{self.name}.log"

    @property
    def start_log(self) -> Path:
        """The output of the celery multi that started it."""
        return self.logs / f"{self.name}.start.log"

    @property
    def daemon(self) -> Daemon:
        """The process."""
        pidfile = self.run / f"{self.name}.pid"
        return Daemon(self.name, pidfile, f"--pidfile={pidfile}", self.log)

    @property
    def role(self) -> str:
        """The role: host, conductor, scheduler; "" when its env file says none of them."""
        role = read(self.env_file).get("STILLWATER_ROLE", "")
        return role if role in ROLES else ""

    @property
    def graceful_seconds(self) -> float:
        """The time it has to end its work after SIGTERM; 0: as long as it takes. Raises BadEnvFile."""
        told = read(self.env_file).get("STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT")
        if not told:
            return GRACEFUL_SHUTDOWN_TIMEOUTS[self.role or "host"]
        try:
            return float(told)
        except ValueError as exc:
            name = "STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT"
            raise BadEnvFile(f"{self.env_file}: {name}={told} is no number of seconds") from exc

    def command(self, verb: str) -> list[str]:
        """Return the command line `celery multi VERB`, which docs/operator-guide.md has for people."""
        return [
            sys.executable, "-m", "celery", "multi", verb, f"{self.name}@stillwater", "-A", "cloud.celery",
            f"--pidfile={self.run / '%n.pid'}", f"--logfile={self.logs / '%n.log'}", "--loglevel=INFO",
            "-P", "threads", "--without-mingle", "--without-gossip",
        ]  # fmt: skip


def start(nodes: Iterable[WorkerNode], state: Path) -> list[WorkerNode]:
    """Start the workers that do not run, all at once; return them. Raises NotStarted."""
    stopped = [node for node in nodes if node.daemon.forget_if_dead()]
    launches = [(node, _launch(node, state)) for node in stopped]
    deadline = time.monotonic() + START_SECONDS
    for node, launch in launches:
        try:
            launch.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as exc:
            launch.kill()
            raise NotStarted(f"{node.name} did not start in {START_SECONDS} s", node.log) from exc
        if "FAILED" in node.start_log.read_text(errors="replace"):  # celery multi exits with 0 all the same
            raise NotStarted(f"celery multi could not start {node.name}", node.start_log)
    return stopped


def wait_until_up(nodes: Sequence[WorkerNode], up: Callable[[], Collection[str]], seconds: float) -> None:
    """Wait until `up()` names all workers. Raises NotStarted after `seconds`, or when a worker has ended."""
    started, waiting = time.monotonic(), {node.name for node in nodes}
    while waiting:
        waiting -= set(up())
        waited = time.monotonic() - started
        for node in nodes:
            if node.name in waiting and waited > FORK_SECONDS and not node.daemon.is_there():
                raise NotStarted(f"{node.name} ended while starting", node.log)
        if waiting and waited > seconds:
            late = min(waiting)
            log = next(node.log for node in nodes if node.name == late)
            raise NotStarted(f"{', '.join(sorted(waiting))}: no heartbeat after {seconds:.0f} s", log)
        if waiting:
            time.sleep(0.5)


def pid_under_other_supervisor(node: WorkerNode) -> int | None:
    """Return the pid of the same worker under another supervisor (a systemd unit): it has no pidfile of ours."""
    cell = read(node.env_file).get("STILLWATER_CELL_UUID")
    marks = {"STILLWATER_ENV_FILE": str(node.env_file)} | ({"STILLWATER_CELL_UUID": cell} if cell else {})
    for pid in with_command(f"\0{node.name}@stillwater\0"):
        with suppress(psutil.Error):  # it ended meanwhile, or belongs to another user
            if marks.items() & psutil.Process(pid).environ().items() and not alive(pid, node.daemon.needle):
                return pid
    return None


def end(node: WorkerNode) -> None:
    """Send SIGTERM: take no new work, end what is begun, exit. Repeated is the same; not running is success."""
    node.daemon.send(signal.SIGTERM)


def end_now(node: WorkerNode) -> None:
    """Kill it: as safe as any other end. Not running is success."""
    if node.daemon.pid() is not None:
        end_at_once([node.daemon], NOW_SECONDS)
        node.daemon.forget_if_dead()


def environment(env_file: Path, state: Path) -> dict[str, str]:
    """Return this process's environment, with Stillwater's variables replaced by the env file and state folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STILLWATER_")}
    clean.pop("PYTHONDONTWRITEBYTECODE", None)  # seven processes would compile everything at every start
    clean["PATH"] = clean.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    return clean | {"STILLWATER_STATE": str(state), "STILLWATER_ENV_FILE": str(env_file)}


def read(file: Path) -> dict[str, str]:
    """Return the variables of an env file; none when there is no file. Raises BadEnvFile."""
    if not file.is_file():
        return {}
    lines = [line for line in file.read_text().splitlines() if "=" in line and not line.startswith("#")]
    found = {}
    for line in lines:
        name, value = line.split("=", 1)
        try:
            found[name] = "".join(shlex.split(value))
        except ValueError as exc:
            raise BadEnvFile(f"{file}: the value of {name} cannot be read: {exc}") from exc
    return found


def _launch(node: WorkerNode, state: Path) -> subprocess.Popen[bytes]:
    for folder in (node.run, node.logs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with node.start_log.open("wb") as out:
        return subprocess.Popen(
            node.command("start"), cwd=ROOT, env=environment(node.env_file, state), umask=0o077,
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
