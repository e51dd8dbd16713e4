"""Following hosts until each has reached its goal, or will not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cloud.words import counted
from compute.models import Service
from tasks.management import guest_table
from tasks.management.output import Outcome, Output
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, look

DONE, USAGE, STILL, SILENT, UNFINISHED, NOT_STARTED, CANCELLED = 0, 1, 2, 3, 4, 5, 6
INTERRUPTED = 130
MARGIN = 15.0  # seconds in which a process records and closes after its deadline

Goal = Callable[[ServiceSnapshot], tuple[int, str] | None]  # None: not yet


@dataclass(slots=True)
class LivenessWatch:
    """When each host's record last changed, by the clock of this machine: those of two machines differ."""

    patience: float
    _last: dict[str, tuple[object, float]] = field(default_factory=dict)

    def silent(self, one: ServiceSnapshot) -> float:
        """Return the seconds since its record last changed."""
        service, now = one.service, time.monotonic()
        said: object = service and (service.draining_since, service.ended_at)
        if service and not _went_silent(service):
            said = (said, service.last_seen_up)
        before = self._last.get(one.place.name)
        if before is None or (not one.down and before[0] != said):
            self._last[one.place.name] = (said, now)
            return 0.0
        return now - before[1]

    def lost(self, one: ServiceSnapshot) -> Outcome | None:
        """Return the outcome when a host or its cell has been silent for too long."""
        silent = self.silent(one)
        if silent <= self.patience:
            return None
        name, cell = one.place.name, one.place.cell.name
        if one.down:
            return Outcome(name, SILENT, f"{name}: {cell} has not answered for {silent:.0f} s ({one.down}). "
                       "What was asked for stays asked for; see: manage.py cell_list.")  # fmt: skip
        if one.beat_age is not None and one.beat_age < self.patience:
            return Outcome(name, SILENT, f"{name} has not done what it was asked for within {silent:.0f} s, and stays "
                       f"asked. Does its log say why? See: manage.py host status {name}")  # fmt: skip
        return Outcome(name, SILENT, f"{name} has not been heard of for {silent:.0f} s. What was asked for stays "
                   f"asked for. On its machine: manage.py host status {name}; manage.py host start {name}")  # fmt: skip


def follow(
    places: Sequence[ServiceLocation], goal: Goal, screen: Output, interval: float, patience: float
) -> tuple[list[ServiceSnapshot], list[Outcome]]:
    """Look, show, wait; until every host has an outcome. Return the last look, and the outcomes."""
    hearing, ends = LivenessWatch(patience), {}
    while True:
        looks = look(places)
        for one in looks:
            name = one.place.name
            reached = None if name in ends else goal(one)
            if reached is not None:
                ends[name] = Outcome(name, *reached)
            elif name not in ends and (lost := hearing.lost(one)):
                ends[name] = lost
        screen.show(looks)
        if len(ends) == len(places):
            return looks, [ends[place.name] for place in places]
        time.sleep(interval)


def drained(began: datetime) -> Goal:
    """Return the goal of a drain: no operation needs the host; or, when it was told to exit, it has ended.

    `began`: when the command began to follow.
    """

    def goal(one: ServiceSnapshot) -> tuple[int, str] | None:
        service, name = one.service, one.place.name
        if service is None:
            return None
        if service.ended_at is not None and service.drain_state == "emptying":
            return SILENT, (f"{name} is stopped, and its servers cannot leave. They go on when it is started: "
                            f"manage.py host start {name}")  # fmt: skip
        # a host that drained before its servers were to leave has not read the new request yet
        stays = one.state == "drained" and service.drain_wanted and not service.drain_then_exit
        if (service.ended_at is not None or stays) and one.moves.staying:
            return STILL, (f"{name} is {one.state}, and {len(one.moves.staying)} of its servers are still there, as "
                           f"the time was over: {one.moves.sentence}.")  # fmt: skip
        if service.ended_at is not None:
            return _ended(name, service.in_progress)
        if not service.drain_wanted and service.drain_by == "":
            return CANCELLED, f"{name} takes work again: somebody undrained it meanwhile."
        if stays:
            return DONE, _stays(one, service)
        if _is_late(one, service, began):
            return STILL, (
                f"{name} still drains at its deadline, {_needed(one)}{_far(one)}. "
                f"The drain goes on. Follow it: manage.py host drain {name}; "
                f"take it back: manage.py host undrain {name}"
            )
        return None

    return goal


def undrained(beats: dict[str, datetime | None]) -> Goal:
    """Return the goal of an undrain: the host takes work, and has beaten again since `beats`.

    `beats`: the heartbeats of the hosts at the time their drain requests were taken back. Where servers are to come
    back, they have.
    """

    def goal(one: ServiceSnapshot) -> tuple[int, str] | None:
        service, name = one.service, one.place.name
        if service is None:
            return None
        if service.ended_at is not None and service.is_returning:
            return SILENT, f"{name} is stopped; its servers come back when it is started: manage.py host start {name}"
        if service.ended_at is not None:
            return DONE, f"{name} is stopped; it takes work when it is started: manage.py host start {name}"
        if service.drain_wanted or service.drain_state == "emptying":
            return CANCELLED, f"{name} was asked to drain again meanwhile, by {service.drain_by}."
        if one.state == "up" and (name not in beats or service.last_seen_up != beats[name]):
            return _back(one, service)
        if service.draining_since is not None and service.drain_then_exit:
            return STILL, (
                f"{name} was told to end ({service.drain_by}), which cannot be taken back. "
                f"It ends, then: manage.py host start {name}"
            )
        return None

    return goal


def stopped(until: float) -> Goal:
    """Return the goal that the process has ended. `until`: when to give up, in time.monotonic(); 0: never."""

    def goal(one: ServiceSnapshot) -> tuple[int, str] | None:
        name, service = one.place.name, one.service
        if one.place.pid is not None:
            if not until or time.monotonic() < until:
                return None
            return STILL, (
                f"{name} still drains (pid {one.place.pid}), {_needed(one)}. It ends "
                f"after them. Follow it: manage.py host stop {name}; end it sooner: with --force --timeout 1"
            )
        if service is None:
            return DONE, f"{name} is stopped; what it left is not known{f' ({one.down})' if one.down else ''}."
        if service.ended_at is None and one.operations:
            return _ended(name, len(one.operations))
        return _ended(name, service.in_progress if service.ended_at else 0)

    return goal


def started(lives: dict[str, str]) -> Goal:
    """Return the goal that the host beats, in another incarnation than `lives` has."""

    def goal(one: ServiceSnapshot) -> tuple[int, str] | None:
        name, service = one.place.name, one.service
        if service is None or service.incarnation == lives.get(name, "") or not service.beats:
            return None
        pid = f"pid {one.place.pid}"
        if service.drain_wanted:
            return DONE, (f"{name} is up ({pid}), and drained as {service.drain_by} wants it. "
                          f"To have it take work: manage.py host undrain {name}")  # fmt: skip
        forced = ", and forced down all the same: it gets no servers until that is taken back" * service.forced_down
        return DONE, f"{name} is up ({pid}){forced}."

    return goal


def _back(one: ServiceSnapshot, service: Service) -> tuple[int, str] | None:
    """Return the outcome when no server is to come back any more: the host takes work."""
    if service.drain_moves:
        return None
    return DONE, f"{one.place.name} takes work."


def _stays(one: ServiceSnapshot, service: Service) -> str:
    took = ""
    since = service.drain_asked_at if service.drain_moves else service.draining_since
    if service.drained_at and since:
        took = f" after {(service.drained_at - since).total_seconds():.1f} s"
    waits = f"; {counted(one.waiting, 'request waits', 'requests wait')} for it" if one.waiting else ""
    name = one.place.name
    return f"{name} is drained{took}{_far(one)}{waits}. It stays so until: manage.py host undrain {name}"


def _far(one: ServiceSnapshot) -> str:
    moved = f"; {one.moves.sentence}" if one.moves.lines else ""
    return moved + (f"; {guest_table.sentence(one.guests)}" if one.guests else "")


def _is_late(one: ServiceSnapshot, service: Service, began: datetime) -> bool:
    """Return whether the deadline passed while it was followed: an earlier one is no news."""
    deadline = service.drain_deadline
    if deadline is None or deadline < began:
        return False
    return (one.at - deadline).total_seconds() > (MARGIN if service.drain_then_exit else 0.0)


def _went_silent(service: Service) -> bool:
    """Return whether it has not begun what was requested: its heartbeats alone are no answer."""
    signalled = bool(service.drain_by) and not service.drain_wanted
    return not signalled and service.drain_wanted != (service.draining_since is not None)


def _needed(one: ServiceSnapshot) -> str:
    return counted(len(one.operations), "operation needs it", "operations need it")


def _ended(name: str, unfinished: int) -> tuple[int, str]:
    if not unfinished:
        return DONE, f"{name} is stopped."
    left = counted(unfinished, "operation")
    return UNFINISHED, (f"{name} ended with {left} unfinished. The journal keeps it: what is unfinished goes on, or "
                        f"fails with a reason, when {name} is started: manage.py host start {name}")  # fmt: skip
