"""`host start`, `host stop` and `host restart`: worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from django.conf import settings
from django.db import DatabaseError

from cells.models import HostMapping
from compute.models.host import COMPUTE
from tasks import worker_process
from tasks.management import shutdown_guests
from tasks.management import wait as following
from tasks.management.options import CommandRefused, HostCommand, worst
from tasks.management.output import Outcome
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, look
from tasks.management.wait import DONE, NOT_STARTED, STILL, UNFINISHED, follow
from tasks.worker_process import WorkerNode

UP_SECONDS = 90.0
FOR_EVER = float("inf")


def start(asked: HostCommand) -> int:
    """Start the workers that do not run, and wait until each is up. Return the exit code."""
    looks, ends = _start(asked, _ours(asked.local()))
    asked.screen.end(looks, ends)
    return worst([end.code for end in ends])


def stop(asked: HostCommand) -> int:
    """Send SIGTERM to all of them, and follow their drains to the end. Return the exit code."""
    places = _ours(asked.local())
    alone_ended: dict[str, Outcome] = {}
    if asked.shutdown_guests:
        places, alone_ended = shutdown_guests.ask_and_tell(asked, look(shutdown_guests.require_compute_hosts(places)))
    looks, ends = _stop(asked, places)
    if asked.shutdown_guests:
        ends = [_with_guests(asked, *both, alone_ended) for both in zip(looks, ends, strict=True)]
    asked.screen.end([end.look or one for end, one in zip(ends, looks, strict=True)], ends)
    return worst([end.code for end in ends])


def restart(asked: HostCommand) -> int:
    """Restart the workers one after the other, or `--parallel` at a time. Return the exit code.

    A worker that does not come back ends the rolling restart.
    """
    places = _ours(asked.local())
    looks: list[ServiceSnapshot] = []
    ends: list[Outcome] = []
    for group in _groups(places, asked.parallel):
        seen, now = _restart(asked, group)
        looks += seen
        ends += now
        if any(end.code not in (DONE, UNFINISHED) for end in now):
            break
    asked.screen.end(looks, ends)
    alone = [place.name for place in places[len(ends) :]]
    if alone:
        asked.screen.say(f"Left alone: {', '.join(alone)}.")
    return worst([end.code for end in ends])


def _with_guests(asked: HostCommand, one: ServiceSnapshot, end: Outcome, alone_ended: dict[str, Outcome]) -> Outcome:
    """Return the outcome for the process, then for its guests."""
    name = one.place.name
    if end.code == STILL:
        return end
    then = alone_ended.get(name) or shutdown_guests.carried_out(asked, one, end)
    if then is not end:
        end = Outcome(name, max(then.code, end.code), f"{end.sentence}\n{then.sentence}", then.look)
    return end


def _restart(asked: HostCommand, group: Sequence[ServiceLocation]) -> tuple[list[ServiceSnapshot], list[Outcome]]:
    """Stop and start. A worker that left operations unfinished is started, too: that is how they go on."""
    looks, ends = _stop(asked, group)
    if any(end.code not in (DONE, UNFINISHED) for end in ends):
        return looks, ends
    for end in ends:
        asked.screen.say(end.sentence)
    return _start(asked, group)


def _start(asked: HostCommand, places: Sequence[ServiceLocation]) -> tuple[list[ServiceSnapshot], list[Outcome]]:
    before = look(places, closely=False)
    ending = {one.place.name: _still_ending(one) for one in before if _is_ending(one)}
    rest = [place for place in places if place.name not in ending]
    try:
        began = {process.name for process in worker_process.start([_node(place) for place in rest], asked.state)}
    except worker_process.NotStarted as exc:
        return before, [Outcome(place.name, NOT_STARTED, f"{exc}. Its log: {exc.log}") for place in places]
    lives = {one.place.name: one.service.incarnation for one in before if one.service and one.place.name in began}
    looks, ends = list(before), dict(ending)
    if rest:
        goal = _up_or_dead(following.started(lives))
        looks, found = follow(rest, goal, asked.screen, asked.interval, UP_SECONDS)
        ends |= {end.host: end for end in found}
        looks += [one for one in before if one.place.name in ending]
    _name_unmapped(asked, places)
    return looks, [ends[place.name] for place in places]


def _stop(asked: HostCommand, places: Sequence[ServiceLocation]) -> tuple[list[ServiceSnapshot], list[Outcome]]:
    seconds = asked.seconds
    if seconds is None:
        graceful = [_node(place).graceful_seconds for place in places]
        seconds = max(graceful) + worker_process.MARGIN if all(graceful) else 0.0
    for place in places:
        worker_process.end(_node(place))
    goal = following.stopped(time.monotonic() + seconds if seconds else 0.0)
    looks, ends = follow(places, goal, asked.screen, asked.interval, FOR_EVER)
    for place in places:
        _node(place).daemon.forget_if_dead()
    if asked.force:
        ends = [_forced(place, end) for place, end in zip(places, ends, strict=True)]
    return looks, ends


def _forced(place: ServiceLocation, end: Outcome) -> Outcome:
    if end.code != STILL:
        return end
    worker_process.end_now(_node(place))
    return Outcome(place.name, UNFINISHED, f"{place.name} was ended by force. What it left is in the journal, and goes "
               f"on or fails with a reason when it is started: manage.py host start {place.name}")  # fmt: skip


def _up_or_dead(goal: following.Goal) -> following.Goal:
    """Return `goal`, which also ends for a process that ended while it started."""
    began = time.monotonic()

    def either(one: ServiceSnapshot) -> tuple[int, str] | None:
        waited = time.monotonic() - began
        process, log = _node(one.place).daemon, _node(one.place).log
        if one.place.pid is None and waited > worker_process.FORK_SECONDS and not process.is_there():
            return NOT_STARTED, f"{one.place.name} ended while starting. Its log: {log}"
        reached = goal(one)
        if reached is None and not one.down and waited > UP_SECONDS:
            return NOT_STARTED, f"{one.place.name} runs, and has no heartbeat after {waited:.0f} s. Its log: {log}"
        return reached

    return either


def _ours(places: Sequence[ServiceLocation]) -> Sequence[ServiceLocation]:
    """Raise CommandRefused for a worker under another supervisor: there would be two, or it would come back."""
    for place in places:
        pid = None if place.pid else worker_process.pid_under_other_supervisor(_node(place))
        if pid:
            raise CommandRefused(
                f"{place.name} runs (pid {pid}), and was not started by this command: it has no pidfile in "
                f"{_node(place).run}. Use what started it (systemctl stop stillwater-host@{place.name}), or drain it."
            )
    return places


def _is_ending(one: ServiceSnapshot) -> bool:
    """Return whether it runs, and was told to exit by a signal or a drain request."""
    service = one.service
    draining = service is not None and service.draining_since is not None and service.ended_at is None
    return one.place.pid is not None and draining and bool(service and service.drain_then_exit)


def _still_ending(one: ServiceSnapshot) -> Outcome:
    name = one.place.name
    return Outcome(name, STILL, f"{name} runs (pid {one.place.pid}) and is about to end. Wait for that and start it: "
               f"manage.py host restart {name}")  # fmt: skip


def _name_unmapped(asked: HostCommand, places: Sequence[ServiceLocation]) -> None:
    """Name the hosts that are not mapped: they get no servers."""
    hosts = {place.name for place in places if place.binary == COMPUTE}
    if settings.ROLE == "host" or not hosts:
        return
    try:
        hosts -= set(HostMapping.objects.filter(host__in=hosts).values_list("host", flat=True))
    except DatabaseError:  # the global database is away: go without this hint
        return
    for name in sorted(hosts):
        asked.screen.say(f"{name} gets no servers before: manage.py discover_hosts")


def _groups(places: Sequence[ServiceLocation], size: int) -> Iterator[Sequence[ServiceLocation]]:
    for first in range(0, len(places), size):
        yield places[first : first + size]


def _node(place: ServiceLocation) -> WorkerNode:
    if place.node is None:
        raise CommandRefused(f"{place.name} is not a worker of this machine.")
    return place.node
