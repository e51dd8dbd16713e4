"""`host start`, `host stop` and `host restart`: worker processes of this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from django.conf import settings
from django.db import DatabaseError

from cells.models import HostMapping
from compute.models.host import COMPUTE
from tasks import worker_process
from tasks.management import shutdown_guests, wait
from tasks.management.options import HostCommand
from tasks.management.outcome import DONE, NOT_STARTED, STILL, UNFINISHED, CommandRefused, Outcome
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, take_snapshots
from tasks.worker_process import WorkerNode

UP_SECONDS = 90.0


def start(command: HostCommand) -> int:
    """Start the workers that do not run, and wait until each is up. Return the exit code."""
    return command.output.end(*_start(command, command.locate_processes()))


def stop(command: HostCommand) -> int:
    """Send SIGTERM to all of them, and follow their drains to the end. Return the exit code."""
    locations = command.locate_processes(compute=command.shutdown_guests)
    done: dict[str, Outcome] = {}
    if command.shutdown_guests:
        # before the processes are signalled; `--timeout` is the time to follow them
        followed, done = shutdown_guests.request_all(replace(command, seconds=None), take_snapshots(locations))
        locations = [followed.get(one.name, one) for one in locations]
    snapshots, outcomes = _stop(command, locations)
    if command.shutdown_guests:
        outcomes = {one.name: _add_guests(command, one, outcomes[one.name], done) for one in snapshots}
    return command.output.end(snapshots, outcomes)


def restart(command: HostCommand) -> int:
    """Restart the workers one after the other, or `--parallel` at a time. Return the exit code.

    A worker that does not come back ends the rolling restart.
    """
    locations = command.locate_processes()
    snapshots: list[ServiceSnapshot] = []
    outcomes: dict[str, Outcome] = {}
    for first in range(0, len(locations), command.parallel):
        last, group = _restart(command, locations[first : first + command.parallel])
        snapshots += last
        outcomes |= group
        if not _succeeded(group):
            break
    code = command.output.end(snapshots, outcomes)
    rest = [one.name for one in locations if one.name not in outcomes]
    if rest:
        command.output.say(f"Not restarted: {', '.join(rest)}.")
    return code


def _restart(command: HostCommand, group: Sequence[ServiceLocation]) -> wait.Followed:
    """Stop and start. A worker that left operations unfinished is started, too: that is how they continue."""
    snapshots, outcomes = _stop(command, group)
    if not _succeeded(outcomes):
        return snapshots, outcomes
    for one in outcomes.values():
        command.output.say(one.sentence)
    return _start(command, group)


def _start(command: HostCommand, locations: Sequence[ServiceLocation]) -> wait.Followed:
    before = {one.name: one for one in take_snapshots(locations, details=False)}
    outcomes = {name: _still_ending(one) for name, one in before.items() if _is_ending(one)}
    rest = [one for one in locations if one.name not in outcomes]
    try:
        begun = {node.name for node in worker_process.start([_node(one) for one in rest], command.state)}
    except worker_process.NotStarted as exc:
        return list(before.values()), {name: Outcome(NOT_STARTED, f"{exc}. Its log: {exc.log}") for name in before}
    known = {name: one.service.incarnation for name, one in before.items() if one.service and name in begun}
    if rest:
        goal = _up_or_dead(wait.started(known))
        last, found = wait.follow(command, rest, goal, UP_SECONDS)
        outcomes |= found
        before |= {one.name: one for one in last}
    _name_unmapped(command, locations)
    return list(before.values()), {name: outcomes[name] for name in before}


def _stop(command: HostCommand, locations: Sequence[ServiceLocation]) -> wait.Followed:
    seconds = command.seconds
    if seconds is None:
        graceful = [_node(one).graceful_seconds for one in locations]
        seconds = max(graceful) + worker_process.MARGIN if all(graceful) else 0.0
    for one in locations:
        worker_process.end(_node(one))
    goal = wait.stopped(time.monotonic() + seconds if seconds else 0.0)
    snapshots, outcomes = wait.follow(command, locations, goal, math.inf)
    for one in locations:
        _node(one).daemon.forget_if_dead()
        if command.force and outcomes[one.name].code == STILL:
            worker_process.end_now(_node(one))
            outcomes[one.name] = Outcome(UNFINISHED, f"{one.name} was ended by force. What it left is in the journal: "
                                         f"it continues, or fails, after: manage.py host start {one.name}")
    return snapshots, outcomes


def _succeeded(outcomes: dict[str, Outcome]) -> bool:
    return all(one.code in (DONE, UNFINISHED) for one in outcomes.values())


def _add_guests(command: HostCommand, one: ServiceSnapshot, outcome: Outcome, done: dict[str, Outcome]) -> Outcome:
    """Return the outcome for the process, then for its guests."""
    if outcome.code == STILL:
        return outcome
    guests = done.get(one.name) or shutdown_guests.complete(command, one, outcome)
    if guests is outcome:
        return outcome
    return Outcome(max(guests.code, outcome.code), f"{outcome.sentence}\n{guests.sentence}", guests.snapshot)


def _up_or_dead(goal: wait.Goal) -> wait.Goal:
    """Return `goal`, which also ends for a process that ended while it started."""
    began = time.monotonic()

    def up_or_dead(one: ServiceSnapshot) -> Outcome | None:
        waited = time.monotonic() - began
        node = _node(one.location)
        if one.location.pid is None and waited > worker_process.FORK_SECONDS and not node.daemon.is_there():
            return Outcome(NOT_STARTED, f"{one.name} ended while starting. Its log: {node.log}")
        reached = goal(one)
        if reached is None and not one.down and waited > UP_SECONDS:
            late = f"{one.name} runs, and has no heartbeat after {waited:.0f} s. Its log: {node.log}"
            return Outcome(NOT_STARTED, late)
        return reached

    return up_or_dead


def _is_ending(one: ServiceSnapshot) -> bool:
    """Return whether it runs, and was requested to exit by a signal or a drain request."""
    service = one.service
    draining = service is not None and service.draining_since is not None and service.ended_at is None
    return one.location.pid is not None and draining and bool(service and service.drain_then_exit)


def _still_ending(one: ServiceSnapshot) -> Outcome:
    return Outcome(STILL, f"{one.name} runs (pid {one.location.pid}) and is about to end. Wait for that and start it: "
                   f"manage.py host restart {one.name}")  # fmt: skip


def _name_unmapped(command: HostCommand, locations: Sequence[ServiceLocation]) -> None:
    """Name the hosts that are not mapped: they get no servers."""
    hosts = {one.name for one in locations if one.binary == COMPUTE}
    if settings.ROLE == "host" or not hosts:
        return
    try:
        hosts -= set(HostMapping.objects.filter(host__in=hosts).values_list("host", flat=True))
    except DatabaseError:  # the global database is away: go without this hint
        return
    for name in sorted(hosts):
        command.output.say(f"{name} gets no servers before: manage.py discover_hosts")


def _node(location: ServiceLocation) -> WorkerNode:
    if location.node is None:
        raise CommandRefused(f"{location.name} is not a worker of this machine.")
    return location.node
