"""Starts again what has ended, as an init system would; every process as it was started the first time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy.local import api, redis
from deploy.local.progress import Failed
from tests.chaos.place import Place

EVERY = 0.1
PAUSE = 0.5  # before a process that ended by itself is started again
Said = Callable[[str], None]


class Supervisor:
    """Watches in a thread of its own. `deaths` counts how often each process was found dead."""

    def __init__(self, place: Place, say: Said) -> None:
        self.place, self.say = place, say
        self.deaths: dict[str, int] = dict.fromkeys(place.names, 0)
        self._away: dict[str, float] = {}  # how long the next absence of a process lasts
        self._due: dict[str, float] = {}
        self._harmed: dict[str, int] = {}  # who was told to end, and may still be at it
        self._starting: dict[str, subprocess.Popen[bytes]] = {}  # they may not have their pidfile yet
        self._stop = threading.Event()
        ours = [name for name in place.names if name != "postgres" and not name.startswith("redis-")]
        self._started = {name: _as_started(self._pid_of_daemon(name)) for name in ours}

    def pid(self, name: str) -> int | None:
        """The process's number while it runs."""
        if name != "postgres":
            return self._pid_of_daemon(name)
        process = self.place.postgres and self.place.postgres.process
        return process.pid if process and process.poll() is None else None

    def harm(self, name: str, how: str, away: float) -> bool:
        """End a process in one of three ways, and keep it away for a while; False when it is down already."""
        pid = self.pid(name)
        if pid is None:
            return False
        self._away[name], self._harmed[name] = away, pid
        if name == "postgres" and self.place.postgres:
            self.place.postgres.kill()
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        if how == "wipe":
            shutil.rmtree(self.place.cloud.state.path("redis", name.removeprefix("redis-"), "appendonlydir"))
        return True

    def let(self, name: str) -> None:
        """Start it now, however long it was to be away."""
        self._due[name] = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[Supervisor]:
        """Watch until the end of the block; then everything runs."""
        thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(60)

    def all_up(self) -> bool:
        """Whether nothing is down, nor about to be."""
        return all(self.pid(name) not in (None, self._harmed.get(name)) for name in self.deaths)

    def _pid_of_daemon(self, name: str) -> int | None:
        return self.place.cloud.daemon(name).pid()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            for child in self.place.children:
                child.poll()  # or it stays a zombie
            for name in self.deaths:
                self._look_at(name)

    def _look_at(self, name: str) -> None:
        if self.pid(name) is not None:
            self._due.pop(name, None)
            return
        if name not in self._due:
            self.deaths[name] += 1
            self._harmed.pop(name, None)
            self._due[name] = time.monotonic() + self._away.pop(name, PAUSE)
        coming = self._starting.get(name)
        if coming and coming.poll() is None:
            return  # a second one would end it, or be in its way
        if time.monotonic() >= self._due[name]:
            self._due[name] = time.monotonic() + PAUSE
            try:
                self._start(name)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                self.say(f"{name} does not start yet: {str(error)[:200]}")

    def _start(self, name: str) -> None:
        state = self.place.cloud.state
        if name == "postgres" and self.place.postgres:
            self.place.postgres.start()
        elif name.startswith("redis-"):
            redis.start(state)
        else:
            if name == "api":
                api.end_orphans(state)  # they would hold its port
            self.place.cloud.daemon(name).forget_if_dead()
            argv, environment, folder = self._started[name]
            with state.log(name).open("ab") as log:
                child = subprocess.Popen(
                    argv, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self.place.children.append(child)
            self._starting[name] = child


def _as_started(pid: int | None) -> tuple[list[str], dict[str, str], str]:
    """Command line, environment and folder of a process that runs."""
    proc = Path(f"/proc/{pid}")
    argv = proc.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    pairs = (entry.split("=", 1) for entry in os.fsdecode(proc.joinpath("environ").read_bytes()).split("\0") if entry)
    return [os.fsdecode(word) for word in argv], dict(pairs), str(proc.joinpath("cwd").readlink())
