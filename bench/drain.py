"""Drain: how long a host stays after its last step, what happens to waiting requests, and how long idle exits take."""

from __future__ import annotations

import statistics
from typing import Any

from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage

OPERATION = 20  # seconds
WAITING = 10  # requests that wait
IDLE = ("host1", "conductor-cell1", "scheduler", "api")
ROUNDS = 3
PAUSED = "paused"


def run() -> dict[str, Any]:
    """Drain a host with a step in progress and requests that wait; then measure idle exits of every kind of process."""
    cloud = Cloud("fake")
    try:
        cloud.up()
        stage = Stage(cloud)
        busy = _busy(stage)
        idle = {name: _idle(stage, name) for name in IDLE}
        stage.empty()
    finally:
        cloud.end()
    return {"operation_s": OPERATION, "waiting": WAITING, **busy, "idle_s": idle}


def _busy(stage: Stage) -> dict[str, Any]:
    slow, *others = stage.boot(WAITING + 1, "host1", stage.image(reboot_hard_delay=str(OPERATION)))
    assert stage.ask(slow, {"reboot": {"type": "HARD"}}) == 202
    stage.running(slow)
    stopping = stage.stop("host1")
    eventually("host1 drains", lambda: stage.service("host1").get("stillwater:drain"), 5, 0.05)
    accepted = [stage.ask(uuid, {"pause": None}) for uuid in others]
    ended = stopping.ended(OPERATION + 30)
    last = max(at for at, _ in stage.timed_effects(slow))
    stage.cloud.up()
    for uuid in others:
        stage.wait(uuid, "PAUSED")
    effects = [stage.effects(uuid).count(PAUSED) for uuid in others]
    return {
        "accepted": accepted.count(202), "stayed_s": round(ended - last, 2),
        "in_all_s": round(ended - stopping.told_at, 1),
        "done_once": effects.count(1), "done_twice": sum(count > 1 for count in effects),
        "lost": effects.count(0),
    }  # fmt: skip


def _idle(stage: Stage, name: str) -> float:
    """Return the median seconds from SIGTERM to the exit of a process that has nothing to do."""
    took = []
    for _ in range(ROUNDS):
        stopping = stage.stop(name)
        took.append(stopping.ended(60) - stopping.told_at)
        stage.cloud.up()
    return round(statistics.median(took), 2)
