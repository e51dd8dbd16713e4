"""Whether a row ended as it may: one outcome of those allowed, one guest, everything done once, nothing left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.chaos.records import Action
from tests.matrix.operations import BUILT_OFF, COPIED, HOST, ON, OPERATIONS, End
from tests.matrix.rows import DONE, TAKEN_BACK, Row, allowed

HARMLESS = {COPIED, BUILT_OFF}  # to read a disk once more, or to build again what nobody has turned on yet
OFF = {"powered off by guest": "powered off", "powered off by force": "powered off"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What all books say of one row's server. `effects`: None where nobody wrote them down; then `boots`."""

    shown: dict[str, Any]
    actions: list[Action]
    effects: list[str] | None
    guests: dict[str, int]
    leaks: list[str]
    boots: int = 0


def judge(row: Row, seen: Seen, unheld: str) -> tuple[str, list[str]]:
    """Its outcome, and what is wrong."""
    operation, wrong = OPERATIONS[row.operation], [unheld] if unheld else []
    action = next((action for action in reversed(seen.actions) if action.key == operation.key), None)
    if action is None:
        return "", [*wrong, "it is not on record"]
    if action.finished is None or not seen.shown or seen.shown["OS-EXT-STS:task_state"]:
        at = [f"{step.name} on {step.host or 'a conductor'} is {step.state}: {step.details}" for step in action.steps]
        return "stuck", [*wrong, *at, *seen.leaks]
    outcome = DONE if action.message is None else TAKEN_BACK
    end = operation.done if outcome == DONE else operation.taken_back
    wrong += [] if outcome in allowed(row) else [f"it is {outcome} ({action.outcome})"]
    wrong += ["it failed without a word"] if outcome == TAKEN_BACK and not action.outcome else []
    wrong += _end(end, seen) + _effects(end, outcome, seen) + seen.leaks
    return outcome, wrong


def _end(end: End, seen: Seen) -> list[str]:
    """Its record and its guest."""
    shown, host = seen.shown, HOST.get(end.at, "")
    found = (shown["status"], shown["OS-EXT-SRV-ATTR:host"] or "", shown["flavor"]["original_name"])
    meant = (end.status, host, end.flavor)
    wrong = [] if found == meant else [f"it is {found}, and not {meant}"]
    guests = {host: int(end.power)} if host else {}
    return wrong + ([] if seen.guests == guests else [f"guests: {seen.guests}, and not {guests}"])


def _effects(end: End, outcome: str, seen: Seen) -> list[str]:
    """Done: just what belongs to it. Taken back: nothing twice."""
    if seen.effects is None:
        wanted = end.effects.count(ON)
        fine = outcome != DONE or seen.boots == wanted
        return [] if fine else [f"its guest booted {seen.boots} times, and not {wanted}"]
    plain = [OFF.get(effect, effect) for effect in seen.effects]
    plain = [one for one, before in zip(plain, ["", *plain], strict=False) if one != before or one not in HARMLESS]
    if outcome == DONE:
        fine = tuple(plain) in {end.effects, end.or_else or end.effects}
        return [] if fine else [f"hypervisors did {plain}, and not {list(end.effects)}"]
    return [f"{effect} {times} times" for effect, times in Counter(plain).items() if times > 1]
