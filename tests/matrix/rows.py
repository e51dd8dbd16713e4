"""The rows of the matrix, and the outcomes each may have: derived from what the actions declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.matrix.operations import ALL, BROKER, DEST, HOSTS, OPERATIONS, PROCESSES, SOURCE, Scene

TERM, KILL, WIPE = "SIGTERM", "SIGKILL", "wipe"  # wipe: a broker is killed, and has forgotten everything
DONE, TAKEN_BACK = "done", "taken back"


@dataclass(frozen=True, slots=True)
class Row:
    """While a step of an operation goes on, one process is ended, or several at once.

    `worked`: the step's work is done and nothing is recorded; else it is claimed and nothing is done.
    """

    operation: str
    who: str
    how: str
    step: str
    worked: bool = False

    def __str__(self) -> str:
        return f"{self.operation}-{self.who}-{self.how}-{self.step}{'-worked' if self.worked else ''}"

    @property
    def at_work(self) -> bool:
        """Whether it is the one that runs the step who is ended."""
        return OPERATIONS[self.operation].runs_on(self.step) in PROCESSES[self.who]

    @property
    def round(self) -> tuple[str, str, Scene]:
        """Rows of one round share the blow."""
        return self.who, self.how, OPERATIONS[self.operation].scene


@dataclass(frozen=True, slots=True)
class Rule:
    """What else than the usual end rows may have, and why."""

    operations: tuple[str, ...]
    who: tuple[str, ...]
    how: str
    steps: tuple[str, ...]
    outcomes: frozenset[str]
    why: str

    def is_about(self, row: Row) -> bool:
        """Whether it is this row's."""
        named = row.operation in self.operations and row.who in self.who
        return named and row.how == self.how and row.step in self.steps


RULES = (
    Rule(("live-migrate",), (SOURCE, DEST, HOSTS, ALL), TERM, ("pick", "check_destination", "check_source"),
         frozenset({TAKEN_BACK}), "nothing has happened yet, and a host of it drains"),
    Rule(("resize", "migrate"), (DEST, HOSTS, ALL), TERM, ("check_source", "pick"),
         frozenset({TAKEN_BACK}), "the only host it could go to drains"),
    Rule(("evacuate", "unshelve"), (DEST, HOSTS, ALL), TERM, ("pick",),
         frozenset({TAKEN_BACK}), "the only host it could go to drains"),
)  # fmt: skip


def allowed(row: Row) -> frozenset[str]:
    """Its outcomes: done, whatever happens to whom (one that is to fail: taken back), but for the rules above."""
    for rule in RULES:
        if rule.is_about(row):
            return rule.outcomes
    return frozenset({TAKEN_BACK if OPERATIONS[row.operation].undone else DONE})


def every() -> list[Row]:
    """Round by round."""
    rounds = [(who, how) for who in PROCESSES for how in (TERM, KILL)] + [(BROKER, WIPE)]
    return [row for who, how in rounds for row in of_round(who, how, OPERATIONS)]


def of_round(who: str, how: str, names: Iterable[str]) -> Iterator[Row]:
    """What there is of some operations while one is ended so."""
    for name in names:
        operation = OPERATIONS[name]
        if who in operation.spared:
            continue
        for step in operation.steps:
            yield Row(name, who, how, step.name)
            worked = Row(name, who, how, step.name, worked=True)
            if how == KILL and worked.at_work:
                yield worked


def sample(rows: Iterable[Row]) -> Iterator[Row]:
    """Of an operation's in which a bystander is ended so, every fifth; of those that it works for, two of three.

    Every operation with every process and kind of end is among them, and every exception of the rules.
    """
    seen: Counter[tuple[str, str, str, bool]] = Counter()
    for row in rows:
        alike = (row.operation, row.who, row.how, row.at_work)
        seen[alike] += 1
        chosen = seen[alike] % 3 != 0 if row.at_work else seen[alike] % 5 == 1
        if chosen or any(rule.is_about(row) for rule in RULES):
            yield row
