"""Processes of a cloud are replaced by those of another version, one by one, while clients work."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloud.processes import gone
from tests.chaos.place import Place
from tests.chaos.run import say
from tests.chaos.supervisor import Supervisor
from tests.live.cloud import eventually
from tests.live.gunicorns import Api

READY_SECONDS = 120


class Rollout:
    """All processes but databases and brokers. `api` runs on a socket that stays, as under a socket unit."""

    def __init__(self, place: Place, supervisor: Supervisor, held: socket.socket) -> None:
        self.place, self.supervisor, self._held = place, supervisor, held
        self.api: Api | None = None
        self.work: Callable[[], None] = lambda: None  # waits until clients got on, between two processes
        self.killed_at: list[float] = []  # APIs, in seconds since 1970
        self._apis = 0

    def to(self, tree: Path, order: Sequence[str], sig: signal.Signals = signal.SIGTERM) -> None:
        """Replace the processes of these names by those of a version, each when the one before it works."""
        for name in order:
            began = time.monotonic()
            if self.tree(name) == tree:
                continue
            if name == "api":
                self._replace_api(tree, sig)
            else:
                self._replace_worker(name, tree, sig)
            self.is_there(name, tree, began)

    def is_there(self, name: str, tree: Path, began: float) -> None:
        """Check that a process is of a version, say so, and let clients work with it."""
        assert self.tree(name) == tree, f"{name} runs {self.tree(name)}"
        say(f"{name} is {tree.name} after {time.monotonic() - began:.1f} s")
        self.work()

    def tree(self, name: str) -> Path | None:
        """The source tree that a process runs; None while it does not run."""
        pid = (self.api and self.api.pid) if name == "api" else self.supervisor.pid(name)
        return Path(os.readlink(f"/proc/{pid}/cwd")) if pid else None

    def start_api(self, tree: Path, words: Sequence[str] = ()) -> Api | None:
        """Start one beside the one that runs, on the same socket; the older one. `words`: gunicorn's arguments."""
        older, self._apis = self.api, self._apis + 1
        log = self.place.cloud.directory / "log" / f"api-{self._apis}.log"
        self.api = Api(self.place.cloud, log, held=self._held, root=tree, words=words).wait_until_ready()
        return older

    def _replace_worker(self, name: str, tree: Path, sig: signal.Signals) -> None:
        self.supervisor.become(name, tree)
        before = self.supervisor.pid(name)
        assert self.supervisor.harm(name, sig.name, 0.0), f"{name} does not run"

        def is_there() -> bool:
            return self.supervisor.pid(name) not in (None, before) and self.tree(name) == tree

        eventually(f"{name} is {tree.name}", is_there, READY_SECONDS)
        count = f"SELECT count(*) FROM compute_service WHERE host = '{name}' AND ended_at IS NULL"
        cell = self._cell(name)
        eventually(f"{name} has a heartbeat", lambda: self.place.cloud.ask(cell, count)[0][0], READY_SECONDS)

    def _cell(self, name: str) -> str:
        if name == "scheduler":
            return "cell0"
        return self.place.cloud.state.hosts.get(name) or name.removeprefix("conductor-")

    def _replace_api(self, tree: Path, sig: signal.Signals) -> None:
        older = self.start_api(tree)
        if older is not None and sig == signal.SIGTERM:
            older.send(sig)
            assert older.wait(READY_SECONDS) == 0
        elif older is not None:
            self.killed_at.append(time.time())
            older.end()


@contextmanager
def begun(place: Place, supervisor: Supervisor, tree: Path) -> Iterator[Rollout]:
    """With the API on a socket of our own, at the address of the cloud's."""
    pid = supervisor.pid("api")
    assert pid, "the API does not run"
    del supervisor.deaths["api"]  # the supervisor does not start it again
    os.kill(pid, signal.SIGTERM)
    assert gone([pid], READY_SECONDS)
    held = socket.create_server(("127.0.0.1", place.cloud.port), backlog=512)
    held.set_inheritable(True)
    with held:
        rollout = Rollout(place, supervisor, held)
        try:
            rollout.to(tree, ["api"])
            yield rollout
        finally:
            if rollout.api is not None:
                rollout.api.end()
