"""Starts again what has ended, as an init system would; every process as it was started the first time.

It also does what an init system does not: pauses a process, starts a second one of the same name beside it, sets its
clock wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from deploy.local import api, redis
from deploy.local.output import Failed
from tests.chaos.pauses import Pauses
from tests.chaos.place import Place
from tests.chaos.twins import Twins, as_started

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
        self._left: set[str] = set()  # what an operator stops and starts
        self._stop = threading.Event()
        self._clocks: dict[str, tuple[int, float]] = {}  # hours ahead, until when
        self.pauses, self.twins = Pauses(), Twins(place)
        ours = [name for name in place.names if name != "postgres" and not name.startswith("redis-")]
        self._started = {name: as_started(self._pid_of_daemon(name)) for name in ours}

    def pid(self, name: str) -> int | None:
        """The process's number while it runs."""
        if name != "postgres":
            return self._pid_of_daemon(name)
        process = self.place.postgres and self.place.postgres.process
        return process.pid if process and process.poll() is None else None

    def harm(self, name: str, how: str, away: float, hours: int = 0) -> bool:
        """Do one of the monkey's harms to a process; False when it is down, or harmed so, already."""
        pid = self.pid(name)
        if pid is None:
            return False
        if how == "SIGSTOP":
            return self.pauses.begin(name, _one_of(name, pid), away)
        if how == "twin":
            return self.twins.start(name, self._started[name])
        if how == "clock" and self.place.postgres is None:
            return False  # SQLite's clock is the process's own: all have that of their machine
        if how == "clock":
            self._clocks[name] = (hours, time.monotonic() + away)
            how, away = "SIGKILL", 0.0  # started again, it has the other clock
        self._away[name], self._harmed[name] = away, pid
        if name == "postgres" and self.place.postgres:
            self.place.postgres.kill()
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        if how == "wipe":
            shutil.rmtree(self.place.cloud.state.path("redis", name.removeprefix("redis-"), "appendonlydir"))
        return True

    def become(self, name: str, folder: Path) -> None:
        """From its next start it runs the source tree in `folder`."""
        _, *words = self._started[name].argv
        argv = (str(folder / ".venv/bin/python"), *words)
        self._started[name] = replace(self._started[name], folder=str(folder), argv=argv)

    @contextlib.contextmanager
    def left_to_operator(self, name: str) -> Iterator[None]:
        """Do not start a process inside the block; afterwards it is started again as it was started there."""
        self._left.add(name)
        try:
            yield
            self._started[name] = as_started(self.pid(name))
        finally:
            self._left.remove(name)

    def heal(self) -> None:
        """Nothing is paused, and every clock is right, or about to be."""
        self.pauses.end_all()
        for name in list(self._clocks):
            self._set_right(name)

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
            for child in [*self.place.children, *self.place.seconds]:
                child.poll()  # or it stays a zombie
            for name, (_, until) in list(self._clocks.items()):
                if time.monotonic() > until:
                    self._set_right(name)
            for name in self.deaths.keys() - self._left:
                self._look_at(name)

    def _set_right(self, name: str) -> None:
        if self._clocks.pop(name, None):
            self.harm(name, "SIGKILL", 0.0)

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
            hours, _ = self._clocks.get(name, (0, 0.0))
            started = self._started[name]
            child = started.with_clock(hours).begin(state.log(name))
            self.place.children.append(child)
            self._starting[name] = child


def _one_of(name: str, pid: int) -> int:
    """Of the API one of the processes that answer; the others and their parent go on."""
    if name != "api":
        return pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid
