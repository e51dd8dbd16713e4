"""The plan of a run, drawn from its seed before the run begins: operations and faults. It is data, so it can shrink."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from compute.virt.fake.faults import KINDS

SECONDS = 150.0  # in which faults begin
SLOTS = 5
LEGAL = {
    "new": ["create"],
    "active": ["stop", "stop", "hard stop", "reboot", "hard reboot", "pause", "suspend", "snapshot", "live-migrate",
               "live-migrate", "live-migrate", "migrate", "resize", "resize", "rebuild", "rescue", "shelve", "delete"],
    "stopped": ["start", "start", "start", "hard reboot", "snapshot", "migrate", "resize", "rebuild", "shelve",
                "delete"],
    "resized": ["confirm", "confirm", "revert", "revert", "delete"],
    "paused": ["unpause", "unpause", "hard reboot", "live-migrate", "delete"],
    "suspended": ["resume", "resume", "hard reboot", "delete"],
    "rescued": ["unrescue", "unrescue", "delete"],
    "shelved": ["unshelve", "unshelve", "delete"],
}  # fmt: skip
THEN = {
    "create": "active", "stop": "stopped", "hard stop": "stopped", "start": "active", "reboot": "active",
    "hard reboot": "active", "pause": "paused", "unpause": "active", "suspend": "suspended", "resume": "active",
    "resize": "resized", "migrate": "resized", "confirm": "active", "revert": "active", "rescue": "rescued",
    "unrescue": "active", "shelve": "shelved", "unshelve": "active", "delete": "new",
}  # fmt: skip
ALL = sorted({verb for verbs in LEGAL.values() for verb in verbs} - {"create"})
# All kinds of fault; each run has some of them.
HARM = ("kill", "pause", "pause thread", "statement", "commit failed", "commit lost", "clock", "database", "broker",
        "weather", "hypervisor", "verb", "twin", "restart", "power", "drain", "silence", "slow")  # fmt: skip
RESTORED = 0.03  # share of the runs in which a cell is restored from a backup
VERBS = (
    "", "", "spawn", "destroy", "power_on", "power_off", "reboot_hard", "migrate_out", "finish_migration",
    "revert_migration", "pre_migrate", "cancel_pre_migrate", "cleanup_source", "snapshot", "power_state",
    "signal_shutdown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """One request of a user."""

    number: int
    at: float
    verb: str
    slot: int
    request_id: str
    extra: int = 0

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.verb} of server {self.slot}"


@dataclass(frozen=True, slots=True)
class Harm:
    """One fault: at the `skip`th matching moment after `at`, for `length` seconds."""

    number: int
    at: float
    kind: str
    target: str = ""
    skip: int = 0
    length: float = 0.0
    extra: str = ""

    def __str__(self) -> str:
        more = f", moment {self.skip}" if self.skip else ""
        return f"{self.at:6.1f} s: {self.kind} {self.target} {self.extra} {self.length:+.1f} s{more}"


@dataclass
class Plan:
    """All operations and faults of a run."""

    seed: int
    operations: list[Operation] = field(default_factory=list)
    harm: list[Harm] = field(default_factory=list)
    switch: float = 0.3
    hosts: int = 2  # of the first cell
    schedulers: int = 1
    second_cell: bool = False
    slow: bool = False
    patient: bool = False  # checked for longer after healing: finds late effects, but costs time


def draw(seed: int, *, calm: bool = False) -> Plan:
    """Return the plan of a seed; `calm`: without faults."""
    dice = Random(f"plan {seed}")
    plan = Plan(
        seed, switch=dice.choice((0.02, 0.1, 0.3, 0.6)), hosts=dice.choice((2, 2, 3)),
        schedulers=dice.choice((1, 1, 1, 2)), second_cell=dice.random() < 0.15, slow=dice.random() < 0.6,
        patient=dice.random() < 0.15,
    )  # fmt: skip
    _operations(plan, dice)
    if not calm and dice.random() < 0.97:
        _harm(plan, dice)
    if not calm:
        _restore(plan, Random(f"restore {seed}"))
    return plan


def _operations(plan: Plan, dice: Random) -> None:
    favourites = dice.sample(ALL, dice.choice((3, 6, 10, len(ALL))))  # swarm testing: no run has all verbs
    slots = dice.randint(1, SLOTS)
    states, when = dict.fromkeys(range(slots), "new"), {slot: dice.random() * 5 for slot in range(slots)}
    pace = dice.choice((0.5, 3.0, 8.0, 15.0)) * slots
    for number in range(dice.randint(10, 20)):
        slot = dice.randrange(slots)
        state = states[slot]
        legal = [verb for verb in LEGAL[state] if verb in favourites or state == "new"] or LEGAL[state]
        verb = dice.choice(legal)
        if state != "new" and dice.random() < 0.2:
            verb = dice.choice([*favourites, "abort", "delete"])
        elif verb == "resize":
            states[slot] = "resized"
        request_id = f"req-{UUID(int=dice.getrandbits(128), version=4)}"
        plan.operations.append(Operation(number, round(when[slot], 3), verb, slot, request_id, dice.choice((2, 3))))
        states[slot] = THEN.get(verb, state)
        when[slot] += min(dice.expovariate(1 / pace), 40.0) if dice.random() < 0.8 else dice.random() * 0.2
    plan.operations.sort(key=lambda one: one.at)


def _harm(plan: Plan, dice: Random) -> None:
    kinds = dice.sample(HARM, dice.choice((1, 2, 3, 5)))
    last = max(one.at for one in plan.operations) + 10
    for number in range(dice.choice((1, 3, 6, 10, 15))):
        kind = dice.choice(kinds)
        at = round(dice.random() * min(last, SECONDS), 3)
        plan.harm.append(_one(number, at, kind, plan, dice))
    plan.harm.sort(key=lambda one: one.at)


def _restore(plan: Plan, dice: Random) -> None:
    """Add a restore to a few runs, as fewer rules can be checked after it; drawn from its own random generator."""
    if dice.random() < RESTORED:
        at = dice.random() * max(one.at for one in plan.operations)
        plan.harm.append(Harm(99, round(at, 3), "restore", "cell1", 0, round(5 + dice.random() * 55, 2)))


def _one(number: int, at: float, kind: str, plan: Plan, dice: Random) -> Harm:
    hosts = [f"host{number}" for number in range(1, plan.hosts + 1)] + (["host4"] if plan.second_cell else [])
    schedulers = [f"scheduler-scheduler{number}" for number in range(1, plan.schedulers + 1)]
    conductors = ["conductor-cell1-1", "conductor-cell1-2"]
    anybody = [*hosts, *hosts, *conductors, *conductors, *schedulers, "api-api1", "api-api2"]
    length = round(dice.choice((0.5, 3.0, 10.0, 40.0, 70.0, 100.0)) * (0.5 + dice.random()), 2)
    skip = dice.choice((0, 1, 3, 10, 30, 100)) + dice.randrange(10)
    if kind == "clock":
        return Harm(number, at, kind, dice.choice(anybody), 0, dice.choice((-7200, -90, -20, 20, 90, 7200, 86400)))
    if kind in ("kill", "pause", "pause thread", "statement", "commit failed", "commit lost"):
        few = skip if kind in ("kill", "pause", "pause thread") else dice.randrange(12)
        return Harm(number, at, kind, dice.choice(anybody), few, length)
    if kind == "database":
        where = dice.choice(("default", "cell1", "cell1", "cell2"))
        return Harm(number, at, kind, where, 0, length, dice.choice(("", dice.choice(anybody))))
    if kind == "broker":
        return Harm(
            number, at, kind, dice.choice(("sim://global", "sim://cell1")), 0, length, dice.choice(("", "wiped"))
        )
    if kind == "weather":
        return Harm(number, at, kind, "", 0, length, dice.choice(("lost", "doubled", "slow")))
    if kind in ("hypervisor", "silence"):
        return Harm(number, at, kind, dice.choice(hosts), 0, length * (3 if dice.random() < 0.3 else 1))
    if kind == "verb":
        how = dice.choice((*sorted(KINDS), "answer lost", "answer lost"))
        return Harm(number, at, kind, dice.choice(hosts), 0, 0.0, f"{dice.choice(VERBS)}:{how}")
    if kind == "power":
        return Harm(number, at, kind, dice.choice(hosts), 0, 0.0, dice.choice(("off", "crash")))
    if kind == "slow":
        return Harm(number, at, kind, dice.choice(hosts), 0, length)
    if kind == "twin":
        return Harm(number, at, kind, dice.choice((*hosts, *conductors)), 0, length)
    return Harm(number, at, kind, dice.choice(hosts if kind == "drain" else (*hosts, *conductors)), 0, length)
