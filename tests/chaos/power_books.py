"""After a round: is the record true, was everything that was accepted carried out, and does the newest word count?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from compute.virt.base import PowerState
from tests.chaos.power_story import EVENT, Switcher
from tests.chaos.records import of_host
from tests.live.cloud import eventually

SYNC_SECONDS = 30.0  # until a sync has come round, also on a host that is just started
ON_RECORD = {"active": {PowerState.RUNNING}, "stopped": {PowerState.SHUTDOWN, PowerState.CRASHED},
             "paused": {PowerState.PAUSED}}  # fmt: skip
KINDS = {" was said, and ": "carried out", "superseded": "superseded", " already": "so already",
         "stays so": "not in a state to change", "deleted": "of a deleted server"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One action of a server's history."""

    id: int
    request_id: str
    action: str
    finished: str | None
    message: str | None
    outcome: str


def judge(switcher: Switcher) -> list[str]:
    """What is wrong with the server at rest, in words."""
    history = _history(switcher)
    wrong = _answers(switcher, history) + _events(switcher, history)
    deleted, *_ = _record(switcher)
    if deleted:
        left = _does(switcher)
        return wrong + ([f"deleted, and its machine is {left.name}"] if left is not PowerState.NOSTATE else [])
    if switcher.told:
        wrong += _untrue(switcher)
    try:
        eventually("the record is true", lambda: not _untrue(switcher), SYNC_SECONDS)
    except AssertionError as late:
        wrong += [f"{late}: {words}" for words in _untrue(switcher)]
    return wrong


def how_ended(switcher: Switcher) -> Counter[str]:
    """What became of the events of a round, by kind."""
    history = _history(switcher)
    said = [line for one in switcher.round if one.verb == EVENT and (line := history.get(one.request_id))]
    return Counter(
        next((kind for words, kind in KINDS.items() if words in line.outcome), line.outcome) for line in said
    )


def _kind(outcome: str) -> str:
    return next((kind for words, kind in KINDS.items() if words in outcome), outcome)


def is_deleted(switcher: Switcher) -> bool:
    """Whether it is gone."""
    return bool(_record(switcher)[0])


def _answers(switcher: Switcher, history: dict[str, Line]) -> list[str]:
    """What was accepted has ended with words, what was refused is not on record."""
    wrong = []
    for one in switcher.round:
        line, name = history.get(one.request_id), f"{one.verb} {one.name} ({one.request_id})"
        if line is None and one.accepted and not (one.verb == "delete" and is_deleted(switcher)):
            wrong.append(f"{name} was accepted, and is not on record")
        if line is not None and one.accepted is False:
            wrong.append(f"{name} was refused ({one.status}), and is on record")
        if line is not None and (line.finished is None or not line.outcome):
            wrong.append(f"{name} has ended without a word: {line}")
    return wrong


def _events(switcher: Switcher, history: dict[str, Line]) -> list[str]:
    """None failed; the newest was not superseded; none was carried out after a newer one."""
    said = [line for one in switcher.round if one.verb == EVENT and (line := history.get(one.request_id))]
    wrong = [f"an event failed: {line}" for line in said if line.message]
    wrong += [f"events ended {kind!r}" for kind in how_ended(switcher) if kind not in KINDS.values()]
    carried = [line for line in said if not line.outcome.startswith("superseded")]
    if said and max(said, key=lambda line: line.id) not in carried:
        wrong.append(f"the newest event was superseded: {said[-1]}")
    in_order = sorted(carried, key=lambda line: line.id)
    ends = [line.finished or "" for line in in_order]
    if ends != sorted(ends):
        wrong.append(f"events were carried out in another order: {in_order}")
    return wrong


def _untrue(switcher: Switcher) -> list[str]:
    """Where record and machine differ."""
    _, vm_state, power_state, task_state, fault = _record(switcher)
    does = _does(switcher)
    if task_state is not None:
        return [f"it is {vm_state}/{task_state}"]
    if vm_state == "error":
        return [f"it is in ERROR: {fault}"]
    if power_state != does or does not in ON_RECORD.get(vm_state, ()):
        return [f"on record {vm_state} and {PowerState(power_state).name}, and the machine is {does.name}"]
    return []


def _record(switcher: Switcher) -> tuple[bool, str, int, str | None, str]:
    columns = "deleted, vm_state, power_state, task_state, coalesce(CAST(fault AS text), '')"
    [row] = _ask(switcher, f"SELECT {columns} FROM compute_instance WHERE uuid = '{switcher.server_id}'")
    return row  # type: ignore[return-value]


def _does(switcher: Switcher) -> PowerState:
    question = f"SELECT power FROM guests WHERE uuid = '{switcher.server_id}'"
    found = of_host(switcher.place.cloud, switcher.host, question)
    return PowerState(found[0][0]) if found else PowerState.NOSTATE


def _history(switcher: Switcher) -> dict[str, Line]:
    columns = "id, request_id, action, finished_at, message, outcome"
    mine = f"server_id = '{switcher.server_id}'"
    rows = _ask(switcher, f"SELECT {columns} FROM compute_instanceaction WHERE {mine} ORDER BY id")
    lines = [Line(id_, request, action, str(end or "") or None, *rest) for id_, request, action, end, *rest in rows]
    return {line.request_id: line for line in lines}


def _ask(switcher: Switcher, question: str) -> list[tuple]:
    cloud = switcher.place.cloud
    return cloud.ask(cloud.state.hosts[switcher.host], question)
