"""Does harm by a schedule that a seed decides, so the same seed is the same harm."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.chaos import line
from tests.chaos.supervisor import Supervisor

LONGEST = 1200.0  # seconds of harm that are planned; a story ends long before
# what may be done to whom, and how often of ten times; of the lines to the databases every way as often
END = {"SIGTERM": 3, "SIGKILL": 3}
WAYS = {
    "redis": {**END, "wipe": 3, "SIGSTOP": 1}, "postgres": END, "api": {**END, "SIGSTOP": 2},
    "line": dict.fromkeys(line.HOWS, 1),
}  # fmt: skip
WORKERS = {**END, "SIGSTOP": 2, "twin": 1, "clock": 1}
PAUSES = ((7, 1.0, 10.0), (2, 10.0, 50.0), (1, 61.0, 90.0))  # how often, from, to: beyond SERVICE_DOWN_TIME, too
HOURS = (-24, -6, 6, 12, 24)  # whole quarters of a day: see `records.righted`


@dataclass(frozen=True, slots=True)
class Harm:
    """One blow: when, to whom, how, and for how long it stays away, paused, held or wrong."""

    at: float
    name: str
    how: str  # a signal; wipe (a Redis is killed, and has forgotten everything); twin; clock; one of line.HOWS
    seconds: float
    hours: int = 0  # that its clock is ahead

    def __str__(self) -> str:
        clock = f", {self.hours:+d} h" if self.hours else ""
        return f"{self.at:6.1f} s {self.how:<18} {self.name}, {self.seconds:.1f} s{clock}"


@dataclass(frozen=True, slots=True)
class Blow:
    """A harm, and whether it met anything."""

    harm: Harm
    hit: bool

    def __str__(self) -> str:
        return f"{self.harm}{'' if self.hit else ' (was down, or so, already)'}"


def schedule(seed: int, names: list[str]) -> list[Harm]:
    """Every 1 to 2 seconds something; hosts and the lines to databases twice as often as anything else."""
    dice = random.Random(f"harm {seed}")
    targets = [name for name in sorted(names) for _ in range(2 if name.startswith(("host", "line")) else 1)]
    harms, now = [], 0.0
    while now < LONGEST:
        now += dice.uniform(1, 2)
        name = dice.choice(targets)
        ways = WAYS.get(name.split("-")[0], WORKERS)
        how = dice.choices(list(ways), list(ways.values()))[0]
        harms.append(Harm(now, name, how, _seconds(dice, name, how), dice.choice(HOURS) if how == "clock" else 0))
    return harms


def _seconds(dice: random.Random, name: str, how: str) -> float:
    if how == "SIGSTOP" and not name.startswith("redis"):
        _, least, most = dice.choices(PAUSES, [often for often, *_ in PAUSES])[0]
        return dice.uniform(least, most)
    longest = {"SIGSTOP": 10.0, "clock": 30.0, "freeze": 20.0, "hold before COMMIT": 40.0, "hold after COMMIT": 40.0}
    return dice.uniform(0, longest.get(how, 3.0))


@contextmanager
def loose(seed: int, supervisor: Supervisor) -> Iterator[list[Blow]]:
    """Do harm during the block, and undo what can be undone; what was done."""
    done: list[Blow] = []
    stop = threading.Event()
    lines = supervisor.place.lines

    def run() -> None:
        began = time.monotonic()
        for harm in schedule(seed, [*supervisor.deaths, *lines]):
            if stop.wait(max(0.0, harm.at - (time.monotonic() - began))):
                return
            if harm.name in lines:
                hit = lines[harm.name].harm(harm.how, harm.seconds)
            else:
                hit = supervisor.harm(harm.name, harm.how, harm.seconds, harm.hours)
            done.append(Blow(harm, hit))

    thread = threading.Thread(target=run, name="monkey", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(60)
        for one in lines.values():
            one.heal()
        supervisor.heal()
