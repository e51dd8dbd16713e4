"""Fifty guests of one host that are stopped at once, each with a will of its own, and what the host does meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.live.cloud import eventually
from tests.live.stage import Stage

GRACE = 12  # seconds each of them has
AGAIN = 10  # seconds between signals: STILLWATER_SHUTDOWN_RETRY_INTERVAL
CLIENTS = 8
STATES = ("queued", "running", "waiting")
OWN = "termination_grace_period_seconds"


@dataclass(frozen=True)
class Will:
    """How some of the guests answer their power button; `off` is when that has them off."""

    count: int
    faults: dict[str, str]
    off: float
    ends: str  # how the words begin in which their step ends


WILLS = (
    Will(14, {}, 0.0, "guest shut down in 0."),
    Will(8, {"shutdown_delay": "3"}, 3.0, "guest shut down in 3."),
    Will(8, {"shutdown_delay": "6"}, 6.0, "guest shut down in 6."),
    Will(5, {"shutdown_delay": "9"}, 9.0, "guest shut down in 9."),
    Will(7, {"shutdown_skip": "1"}, AGAIN, "guest shut down in 10."),
    Will(8, {"shutdown_ignore": "1"}, GRACE, f"forced off after {GRACE} s, 2 signals"),
)
SLOWEST = max(will.off for will in WILLS)
ENDS_AT_ONCE = 8  # guests that go off at the same moment


@dataclass
class Busy:
    """The host's stops by their state, ten times a second, with the seconds since the first was asked for."""

    seen: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def most(self, state: str, since: float = 0.0) -> int:
        """The largest number of stops in a state from some moment on."""
        return max((counts[state] for at, counts in self.seen if at >= since), default=0)

    def typical(self, state: str, since: float = 0.0) -> float:
        """How many stops were in a state at most moments from some moment on, while there were any."""
        return statistics.median(counts[state] for at, counts in self.seen if at >= since and any(counts.values()))

    def calm(self) -> float:
        """When every guest had been asked: those that are not off wait. 0: not yet."""
        all_waiting = (at for at, counts in self.seen if counts["waiting"] and not counts["queued"] + counts["running"])
        return next(all_waiting, 0.0)


@dataclass
class Stopped:
    """What came of it; seconds since the first stop was asked for."""

    accepted: float
    total: float  # until the last is SHUTOFF on record
    late: list[float]  # each: from its guest's end to its step's
    words: dict[str, list[str]]  # by how they were to end, how they did
    busy: Busy
    answered: dict[str, float]  # meanwhile


def stop_them(stage: Stage, host: str, cell: str, prefix: str) -> Stopped:
    """Boot them, stop them, and ask for other things while they wait."""
    ids = _boot(stage, host, prefix)
    quiet = stage.boot(2, host, name=f"{prefix}-quiet")
    names = ",".join(f"'{uuid}'" for uuid in ids)
    where = f"name = 'power_off' AND server_id IN ({names})"
    asked = time.time()
    with _watching(stage, cell, where, asked) as busy, ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda uuid: stage.ask(uuid, {"os-stop": None}), ids))
        accepted = time.time() - asked
        assert answers == [202] * len(ids)
        eventually("they wait", busy.calm, 20, 0.02)
        answered = _meanwhile(stage, host, prefix, *quiet)
        eventually("all are off", lambda: not any(busy.seen[-1][1].values()), 60, 0.05)
    ended = dict(stage.steps(cell, f"server_id, {_seconds('finished_at')}", where))
    went = {uuid: max(at for at, verb in stage.timed_effects(uuid) if "off by" in verb) for uuid in ids}
    said = dict(stage.steps(cell, "server_id, details", where))
    for uuid in ids:
        stage.wait(uuid, "SHUTOFF")
    words = {will.ends: [said[uuid] for uuid in of] for will, of in _by_will(ids)}
    late = [ended[uuid] - went[uuid] for uuid in ids]
    return Stopped(accepted, max(ended.values()) - asked, late, words, busy, answered)


def _by_will(ids: list[str]) -> Iterator[tuple[Will, list[str]]]:
    """They were booted in the order of their wills."""
    left = list(ids)
    for will in WILLS:
        yield will, left[: will.count]
        left = left[will.count :]


def _boot(stage: Stage, host: str, prefix: str) -> list[str]:
    images = [stage.image(**will.faults) for will in WILLS for _ in range(will.count)]
    names = [f"{prefix}-{number}" for number in range(len(images))]
    with ThreadPoolExecutor(CLIENTS) as clients:
        ids = list(clients.map(lambda one: stage.order(one[0], host, one[1], metadata={OWN: str(GRACE)}),
                               zip(images, names, strict=True)))  # fmt: skip
    for uuid in ids:
        stage.wait(uuid, "ACTIVE")
    return ids


def _meanwhile(stage: Stage, host: str, prefix: str, one: str, other: str) -> dict[str, float]:
    """Other requests of the same host, and how long each took until it was done."""

    def took(what: Callable[[], None]) -> float:
        begun = time.monotonic()
        what()
        return time.monotonic() - begun

    def console() -> None:
        answer = stage.call("POST", f"/servers/{one}/action", {"os-getConsoleOutput": {}})
        assert "STILLWATER READY" in answer.json()["output"]

    def pause() -> None:
        assert stage.ask(other, {"pause": None}) == 202
        stage.wait(other, "PAUSED", 10)

    def boot() -> None:
        stage.wait(stage.order(stage.image(), host, f"{prefix}-meanwhile"), "ACTIVE", 10)

    return {"console": took(console), "pause": took(pause), "boot": took(boot)}


@contextmanager
def _watching(stage: Stage, cell: str, where: str, asked: float) -> Iterator[Busy]:
    busy, over = Busy(), threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            found = dict(stage.steps(cell, "state, count(*)", f"{where} GROUP BY state"))
            busy.seen.append((time.time() - asked, {state: found.get(state, 0) for state in STATES}))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    eventually("somebody watches", lambda: busy.seen, 10, 0.02)
    try:
        yield busy
    finally:
        over.set()
        thread.join(10)


def _seconds(column: str) -> str:
    """A moment of SQLite's as seconds since 1970."""
    return f"(julianday({column}) - 2440587.5) * 86400.0"
