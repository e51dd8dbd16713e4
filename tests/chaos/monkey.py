"""Does harm by a schedule that a seed decides, so the same seed is the same harm."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.chaos.supervisor import Supervisor

LONGEST = 600.0  # seconds of harm that are planned; a story ends long before


@dataclass(frozen=True, slots=True)
class Harm:
    """One blow: when, to whom, how, and for how long it stays away."""

    at: float
    name: str
    how: str  # SIGTERM | SIGKILL | wipe (a Redis is killed, and has forgotten everything)
    away: float

    def __str__(self) -> str:
        return f"{self.at:6.1f} s {self.how:<7} {self.name}, away {self.away:.1f} s"


def schedule(seed: int, names: list[str]) -> list[Harm]:
    """Every 1 to 2 seconds something; hosts twice as often as anybody else."""
    dice = random.Random(f"harm {seed}")
    targets = [name for name in sorted(names) for _ in range(2 if name.startswith("host") else 1)]
    harms, now = [], 0.0
    while now < LONGEST:
        now += dice.uniform(1, 2)
        name = dice.choice(targets)
        ways = ["SIGTERM", "SIGKILL", "wipe"] if name.startswith("redis") else ["SIGTERM", "SIGKILL"]
        harms.append(Harm(now, name, dice.choice(ways), dice.uniform(0, 3)))
    return harms


@contextmanager
def loose(seed: int, supervisor: Supervisor) -> Iterator[list[str]]:
    """Do harm during the block; what was done, one line each."""
    done: list[str] = []
    stop = threading.Event()

    def run() -> None:
        began = time.monotonic()
        for harm in schedule(seed, list(supervisor.deaths)):
            if stop.wait(max(0.0, harm.at - (time.monotonic() - began))):
                return
            hit = supervisor.harm(harm.name, harm.how, harm.away)
            done.append(f"{harm}{'' if hit else ' (was down already)'}")

    thread = threading.Thread(target=run, name="monkey", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(60)
