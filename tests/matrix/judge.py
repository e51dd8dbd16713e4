"""Whether a row ended as it may: one outcome of those allowed, one guest, everything done once, nothing left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from compute.virt.base import PowerState
from tests.chaos.records import Action
from tests.matrix.operations import HOST, OPERATIONS, End
from tests.matrix.rows import DONE, TAKEN_BACK, Row, allowed

OFF = {"powered off by guest": "powered off", "powered off by force": "powered off"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What all books say of one row's server."""

    shown: dict[str, Any]
    action: Action
    effects: list[str]
    guests: dict[str, int]
    leaks: list[str]


def judge(row: Row, seen: Seen, unheld: str) -> tuple[str, list[str]]:
    """Its outcome, and what is wrong."""
    operation, action = OPERATIONS[row.operation], seen.action
    wrong = [unheld] if unheld else []
    if action.key != operation.key:
        return "", [*wrong, f"its last action is {action.name}"]
    if action.finished is None or not seen.shown or seen.shown["OS-EXT-STS:task_state"]:
        at = [f"{step.name} on {step.host or 'a conductor'} is {step.state}: {step.details}" for step in action.steps]
        return "stuck", [*wrong, *at, *seen.leaks]
    outcome = DONE if action.message is None else TAKEN_BACK
    end = operation.done if outcome == DONE else operation.taken_back
    wrong += [] if outcome in allowed(row) else [f"it is {outcome} ({action.outcome})"]
    wrong += ["it failed without a word"] if outcome == TAKEN_BACK and not action.outcome else []
    wrong += _end(end, seen) + _effects(end, outcome, seen.effects) + seen.leaks
    return outcome, wrong


def _end(end: End, seen: Seen) -> list[str]:
    """Its record and its guest."""
    shown, host = seen.shown, HOST.get(end.at, "")
    found = (shown["status"], shown["OS-EXT-SRV-ATTR:host"] or "", shown["flavor"]["original_name"])
    meant = (end.status, host, end.flavor)
    wrong = [] if found == meant else [f"it is {found}, and not {meant}"]
    guests = {host: int(PowerState.RUNNING)} if host else {}
    return wrong + ([] if seen.guests == guests else [f"guests: {seen.guests}, and not {guests}"])


def _effects(end: End, outcome: str, effects: list[str]) -> list[str]:
    """Done: just what belongs to it. Taken back: nothing twice."""
    plain = [OFF.get(effect, effect) for effect in effects]
    if outcome == DONE:
        return [] if plain == list(end.effects) else [f"hypervisors did {plain}, and not {list(end.effects)}"]
    return [f"{effect} {times} times" for effect, times in Counter(plain).items() if times > 1]
