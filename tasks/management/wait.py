"""Following hosts until each has reached its goal, or will not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cloud.words import counted
from compute.models import Service
from tasks.management.options import HostCommand
from tasks.management.outcome import CANCELLED, DONE, SILENT, STILL, UNFINISHED, Outcome
from tasks.management.output import count_guests, describe_guest
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, take_snapshots

MARGIN = 15.0  # seconds in which a process records and closes after its deadline

Goal = Callable[[ServiceSnapshot], Outcome | None]  # None: not yet
Followed = tuple[list[ServiceSnapshot], dict[str, Outcome]]  # the last snapshots; the outcomes by host


@dataclass(slots=True)
class LivenessWatch:
    """When each host's record last changed, by the clock of this machine: those of two machines differ."""

    patience: float
    _last: dict[str, tuple[object, float]] = field(default_factory=dict)

    def silent_seconds(self, one: ServiceSnapshot) -> float:
        """Return the seconds since its record last changed."""
        service, now = one.service, time.monotonic()
        record: object = service and (service.draining_since, service.ended_at)
        if service and not _ignores_request(service):
            record = (record, service.last_seen_up)
        before = self._last.get(one.name)
        if before is None or (not one.down and before[0] != record):
            self._last[one.name] = (record, now)
            return 0.0
        return now - before[1]

    def lost(self, one: ServiceSnapshot) -> Outcome | None:
        """Return the outcome when a host or its cell has been silent for too long."""
        silent = self.silent_seconds(one)
        if silent <= self.patience:
            return None
        name, stays = one.name, "The request stays recorded"
        if one.down:
            cell = one.location.cell.name
            return Outcome(SILENT, f"{name}: {cell} has not answered for {silent:.0f} s ({one.down}). {stays}; see: "
                           "manage.py cell_list.")  # fmt: skip
        if one.beat_age is not None and one.beat_age < self.patience:
            return Outcome(SILENT, f"{name} has not carried out the request within {silent:.0f} s. {stays}. Does its "
                           f"log say why? See: manage.py host status {name}")  # fmt: skip
        return Outcome(SILENT, f"{name} has not sent a heartbeat for {silent:.0f} s. {stays}. On its machine: "
                       f"manage.py host status {name}; manage.py host start {name}")  # fmt: skip


def follow(
    command: HostCommand, locations: Sequence[ServiceLocation], goal: Goal, patience: float | None = None
) -> Followed:
    """Read and show all hosts until each has an outcome.

    `patience`: give up a host that is silent for so many seconds; default: as the command line says.
    """
    watch, outcomes = LivenessWatch(command.patience if patience is None else patience), dict[str, Outcome]()
    while True:
        snapshots = take_snapshots(locations)
        for one in snapshots:
            if one.name not in outcomes and (outcome := goal(one) or watch.lost(one)):
                outcomes[one.name] = outcome
        command.output.show(snapshots)
        if len(outcomes) == len(locations):
            return snapshots, {one.name: outcomes[one.name] for one in locations}
        time.sleep(command.interval)


def drained(began: datetime) -> Goal:
    """Return the goal of a drain: no operation needs the host; or, when it was requested to exit, it has ended.

    `began`: when the command began to follow.
    """

    def goal(one: ServiceSnapshot) -> Outcome | None:
        service, name = one.service, one.name
        if service is None:
            return None
        if service.ended_at is not None and service.drain_state == "emptying":
            return Outcome(SILENT, f"{name} is stopped, and its servers cannot leave. They do when it is started: "
                           f"manage.py host start {name}")  # fmt: skip
        # a host that drained before its servers were to leave has not read the new request yet
        stays = one.state == "drained" and service.drain_wanted and not service.drain_then_exit
        if (service.ended_at is not None or stays) and one.moves.staying:
            return Outcome(STILL, f"{name} is {one.state}, and {len(one.moves.staying)} of its servers are still "
                           f"there, as the time was over: {one.moves.sentence}.")  # fmt: skip
        if service.ended_at is not None:
            return _ended(name, service.in_progress)
        if not service.drain_wanted and service.drain_by == "":
            return Outcome(CANCELLED, f"{name} takes work again: another operator undrained it meanwhile.")
        if stays:
            return Outcome(DONE, _drained_sentence(one, service))
        if _is_late(one, service, began):
            return Outcome(STILL, f"{name} still drains at its deadline, {_needed(one)}{_progress(one)}. The drain "
                           f"continues. Follow it: manage.py host drain {name}; take it back: manage.py host undrain "
                           f"{name}")  # fmt: skip
        return None

    return goal


def undrained(beats: Mapping[str, datetime | None]) -> Goal:
    """Return the goal of an undrain: the host takes work, and has sent a heartbeat since `beats`.

    `beats`: the heartbeats of the hosts at the time their drain requests were taken back. Where servers are to come
    back, they have.
    """

    def goal(one: ServiceSnapshot) -> Outcome | None:
        service, name = one.service, one.name
        if service is None:
            return None
        if service.ended_at is not None:
            code, what = (SILENT, "its servers come back") if service.is_returning else (DONE, "it takes work")
            return Outcome(code, f"{name} is stopped; {what} when it is started: manage.py host start {name}")
        if service.drain_wanted or service.drain_state == "emptying":
            return Outcome(CANCELLED, f"{name} was requested to drain again meanwhile, by {service.drain_by}.")
        if one.state == "up" and (name not in beats or service.last_seen_up != beats[name]):
            return None if service.drain_moves else Outcome(DONE, f"{name} takes work.")  # None: servers still return
        if service.draining_since is not None and service.drain_then_exit:
            return Outcome(STILL, f"{name} is ending ({service.drain_by}), which cannot be taken back. When it has "
                           f"ended: manage.py host start {name}")  # fmt: skip
        return None

    return goal


def stopped(until: float) -> Goal:
    """Return the goal that the process has ended. `until`: when to give up, in time.monotonic(); 0: never."""

    def goal(one: ServiceSnapshot) -> Outcome | None:
        name, service = one.name, one.service
        if one.location.pid is not None:
            if not until or time.monotonic() < until:
                return None
            return Outcome(STILL, f"{name} still drains (pid {one.location.pid}), {_needed(one)}. It ends after them. "
                           f"Follow it: manage.py host stop {name}; end it sooner: --force --timeout 1")  # fmt: skip
        if service is None:
            return Outcome(DONE, f"{name} is stopped; what it left is not known{f' ({one.down})' if one.down else ''}.")
        if service.ended_at is None and one.operations:
            return _ended(name, len(one.operations))
        return _ended(name, service.in_progress if service.ended_at else 0)

    return goal


def started(incarnations: Mapping[str, str]) -> Goal:
    """Return the goal that the host sends heartbeats, in another incarnation than in `incarnations`."""

    def goal(one: ServiceSnapshot) -> Outcome | None:
        name, service = one.name, one.service
        if service is None or service.incarnation == incarnations.get(name, "") or not service.beats or one.is_dead:
            return None  # is_dead: a worker may send its first heartbeat before it has written its pidfile
        pid = one.location.pid
        up = f"{name} is up" + (f" (pid {pid})" if pid else "")
        if service.drain_wanted:
            return Outcome(DONE, f"{up}, and drained as {service.drain_by} requested. To have it take work: "
                           f"manage.py host undrain {name}")  # fmt: skip
        forced = ", and still forced down: it gets no servers until that is taken back" * service.forced_down
        return Outcome(DONE, f"{up}{forced}.")

    return goal


def guests_off() -> Goal:
    """Return the goal that every guest is off, or stays on for a reason."""
    began = time.monotonic()

    def goal(one: ServiceSnapshot) -> Outcome | None:
        if one.down or not one.guests:
            return None
        if all(line.is_over for line in one.guests):
            states = {line.state for line in one.guests}
            code = UNFINISHED if "failed" in states else CANCELLED if "called off" in states else DONE
            return Outcome(code, guests_sentence(one, time.monotonic() - began))
        if one.location.node is not None and one.is_dead:
            return Outcome(SILENT, f"{one.name} ended with guests on.")
        return None

    return goal


def guests_sentence(one: ServiceSnapshot, seconds: float) -> str:
    """Return the outcome of a shutdown of all guests."""
    off = [line for line in one.guests if line.state == "off"]
    forced = sum("forced off" in line.words for line in off)
    rest = "".join(f"\n  {describe_guest(line)}" for line in one.guests if line.state != "off")
    how = f", {forced} of them forced off" if forced else ""
    return f"{one.name}: {len(off)} of {len(one.guests)} guests are off after {seconds:.1f} s{how}.{rest}"


def _drained_sentence(one: ServiceSnapshot, service: Service) -> str:
    took = ""
    since = service.drain_asked_at if service.drain_moves else service.draining_since
    if service.drained_at and since:
        took = f" after {(service.drained_at - since).total_seconds():.1f} s"
    waits = f"; {counted(one.waiting, 'request waits', 'requests wait')} for it" if one.waiting else ""
    undo = f"It stays so until: manage.py host undrain {one.name}"
    return f"{one.name} is drained{took}{_progress(one)}{waits}. {undo}"


def _progress(one: ServiceSnapshot) -> str:
    moved = f"; {one.moves.sentence}" if one.moves.lines else ""
    return moved + (f"; {count_guests(one.guests)}" if one.guests else "")


def _is_late(one: ServiceSnapshot, service: Service, began: datetime) -> bool:
    """Return whether the deadline passed while it was followed: an earlier one is no news."""
    deadline = service.drain_deadline
    if deadline is None or deadline < began:
        return False
    return (one.at - deadline).total_seconds() > (MARGIN if service.drain_then_exit else 0.0)


def _ignores_request(service: Service) -> bool:
    """Return whether it has not begun what was requested: then its heartbeats alone are no sign of progress."""
    signalled = bool(service.drain_by) and not service.drain_wanted
    return not signalled and service.drain_wanted != (service.draining_since is not None)


def _needed(one: ServiceSnapshot) -> str:
    return counted(len(one.operations), "operation needs it", "operations need it")


def _ended(name: str, unfinished: int) -> Outcome:
    if not unfinished:
        return Outcome(DONE, f"{name} is stopped.")
    return Outcome(UNFINISHED, f"{name} ended with {counted(unfinished, 'operation')} unfinished, in the journal: it "
                   f"continues, or fails with a reason, after: manage.py host start {name}")  # fmt: skip
