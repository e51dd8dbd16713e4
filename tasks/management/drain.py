"""`host drain` and `host undrain`: writing a drain request into the service record, and following it.

With `--migrate` servers leave first, with `--return` they come back. Conductors do that, whether or not the command
follows. With `--shutdown-guests` the host shuts its guests down before it is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from cells import scatter
from cells.context import current_alias
from cells.management.options import operator_name
from cells.models import Cell
from cloud.words import counted
from compute.hosts import drain as hosts_drain
from compute.hosts import drain_dry_run, guest_shutdown
from compute.hosts.drain_dry_run import Forecast
from compute.hosts.drain_moves import AT_ONCE, DrainMove
from compute.models import Service
from compute.models.host import COMPUTE
from tasks.management import local_shutdown, shutdown_guests
from tasks.management.options import CommandRefused, HostCommand, worst
from tasks.management.output import Outcome, span
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, look
from tasks.management.wait import DONE, SILENT, Goal, drained, follow, undrained

ASK_SECONDS = 15.0  # writing the row also sends a message, which takes long while the broker is away
RESERVE = 10.0  # seconds at the end of a drain's time in which its guests must be off; at most a tenth of it


def drain(asked: HostCommand) -> int:
    """Request the drain, then follow until each host is drained or has ended. Return the exit code."""
    looks = look(_with_servers(asked) if asked.migrate or asked.shutdown_guests else asked.places())
    if asked.dry_run:
        return _forecast(asked, looks)
    shutdowns: dict[str, str] = {}
    ends = {one.place.name: end for one in looks if (end := _ask(asked, one, shutdowns))}
    looks = [replace(one, place=replace(one.place, shutdown=shutdowns.get(one.place.name, ""))) for one in looks]
    if asked.shutdown_guests:
        dead = [one for one in looks if one.down or (one.service is not None and local_shutdown.is_dead(one))]
        ends |= {one.place.name: shutdown_guests.host_is_down(asked, one) for one in dead}
    if asked.no_wait:
        ends |= {
            one.place.name: Outcome(one.place.name, DONE, f"{one.place.name} is asked to drain. Follow it: "
                                f"manage.py host drain {one.place.name}")
            for one in looks if one.place.name not in ends
        }  # fmt: skip
    return _finish(asked, looks, ends, drained(timezone.now()))


def undrain(asked: HostCommand) -> int:
    """Take the drain request back; wait until each host takes work and, with `--return`, has its servers."""
    looks = look(_with_servers(asked) if asked.bring_back else asked.places())
    beats = {one.place.name: one.service.last_seen_up for one in looks if one.service and one.service.drain_wanted}
    ends = {one.place.name: end for one in looks if (end := _undo(asked, one))}
    return _finish(asked, looks, ends, undrained(beats))


def _finish(asked: HostCommand, looks: Sequence[ServiceSnapshot], ends: dict[str, Outcome], goal: Goal) -> int:
    """Follow the hosts that have no outcome yet, and print the outcomes of all. Return the exit code."""
    rest = [one.place for one in looks if one.place.name not in ends]
    if rest:
        last, followed = follow(rest, goal, asked.screen, asked.interval, asked.patience)
        if asked.shutdown_guests:
            followed = [shutdown_guests.carried_out(asked, one, end) for one, end in zip(last, followed, strict=True)]
        ends |= {end.host: end for end in followed}
        seen = {one.place.name: one for one in last}
        looks = [seen.get(one.place.name, one) for one in looks]
    found = [ends[one.place.name] for one in looks]
    asked.screen.end([end.look or one for end, one in zip(found, looks, strict=True)], found)
    return worst([end.code for end in found])


def _ask(asked: HostCommand, one: ServiceSnapshot, shutdowns: dict[str, str]) -> Outcome | None:
    """Write the drain request, unless it is there already; return the outcome, if there is nothing to follow."""
    service, name = one.service, one.place.name
    if service is None:
        return _never_seen(one)
    stopped = one.state == "stopped"
    if stopped and asked.then_exit and not asked.migrate:
        return Outcome(name, DONE, f"{name} is stopped already: nothing to drain.")
    with_guests = asked.shutdown_guests and not local_shutdown.is_dead(one)
    if with_guests:
        shutdown_guests.tell_paused(asked, one.place)
    if with_guests or not _wanted_already(asked, service):
        failed = _write(one.place, service, lambda row: _ask_for(asked, row, shutdowns, with_guests=with_guests))
        if failed:
            return failed
    elif not stopped:
        ago = span((timezone.now() - service.drain_asked_at).total_seconds()) if service.drain_asked_at else "?"
        why = f" ({service.drain_reason})" if service.drain_reason else ""
        asked.screen.say(f"{service.drain_by} asked {name} to drain {ago} ago{why}; following.")
    if stopped and asked.migrate:
        return Outcome(name, SILENT, f"{name} is stopped: its servers cannot leave. They do when it is started: "
                   f"manage.py host start {name}")  # fmt: skip
    if stopped:
        return Outcome(name, DONE, f"{name} is stopped: nothing to drain. When it is started it takes no work until: "
                   f"manage.py host undrain {name}")  # fmt: skip
    return None


def _ask_for(asked: HostCommand, service: Service, shutdowns: dict[str, str], *, with_guests: bool) -> None:
    """Write the drain request and the guest shutdown together: an empty host would be drained in between."""
    with transaction.atomic(using=current_alias()):
        if not _wanted_already(asked, service):
            _drain_request(asked, service)
        if with_guests:
            seconds = asked.seconds - min(RESERVE, asked.seconds / 10) if asked.seconds else None
            by, at_once = operator_name(), asked.parallel
            shutdowns[service.host] = guest_shutdown.ask(service.host, by=by, at_once=at_once, seconds=seconds)


def _undo(asked: HostCommand, one: ServiceSnapshot) -> Outcome | None:
    service = one.service
    if service is None:
        return _never_seen(one)
    if not (service.drain_wanted or service.drain_moves or asked.bring_back):
        return None
    left_alone: list[DrainMove] = []
    at_once = (asked.parallel or AT_ONCE) if asked.bring_back else 0
    failed = _write(one.place, service, lambda row: left_alone.extend(hosts_drain.withdraw(row, bring_back=at_once)))
    for line in left_alone:
        asked.screen.say(f"{one.place.name}: {line.server_id} is left alone: somebody moved it to {line.at}.")
    return failed


def _wanted_already(asked: HostCommand, service: Service) -> bool:
    """Return whether the request changes nothing. Only what the command line says is compared."""
    if not _goes_on(service) or (asked.then_exit and not service.drain_then_exit):
        return False
    if _moves(asked, service) != service.drain_moves:
        return False
    if asked.reason and asked.reason[:255] != service.drain_reason:
        return False
    if asked.seconds is None:
        return True
    deadline, since = service.drain_deadline, service.drain_asked_at
    had = (deadline - since).total_seconds() if deadline and since else 0.0
    return abs(had - asked.seconds) < 1


def _drain_request(asked: HostCommand, service: Service) -> None:
    """Write the drain request. What the command line does not say stays as it was requested before."""
    goes_on = _goes_on(service)
    deadline, seconds = service.drain_deadline if goes_on else None, asked.seconds
    if seconds is None and deadline is not None:
        left = (deadline - timezone.now()).total_seconds()
        seconds = left if left > 0 else None  # a past deadline would end the process at once, if it is to exit now
    hosts_drain.request(
        service, by=operator_name(), reason=asked.reason or service.drain_reason, seconds=seconds,
        then_exit=asked.then_exit or (goes_on and service.drain_then_exit), moves=_moves(asked, service),
    )  # fmt: skip


def _goes_on(service: Service) -> bool:
    """Return whether a drain is requested already."""
    return service.drain_wanted or service.drain_state == "emptying"


def _moves(asked: HostCommand, service: Service) -> int:
    """Return how many servers at a time leave first; 0: they stay."""
    before = service.drain_moves if _goes_on(service) else 0
    if asked.stay or asked.shutdown_guests:
        return 0
    return asked.parallel or before or AT_ONCE if asked.migrate else before


def _with_servers(asked: HostCommand) -> list[ServiceLocation]:
    """Return the places. Raises CommandRefused when one of them can have no servers."""
    places = asked.places()
    others = [place.name for place in places if place.binary != COMPUTE]
    if others:
        raise CommandRefused(f"{', '.join(others)}: only compute hosts have servers.")
    return places


def _write(place: ServiceLocation, service: Service, write: Callable[[Service], None]) -> Outcome | None:
    def work(_: Cell) -> None:
        write(service)

    away = scatter.gather([place.cell], work, timeout=ASK_SECONDS).down.get(place.cell.id)
    return _unreached(place, away.reason) if away else None


def _never_seen(one: ServiceSnapshot) -> Outcome:
    name = one.place.name
    if one.down:
        return _unreached(one.place, one.down)
    return Outcome(name, SILENT, f"{name} has never been seen. On its machine: manage.py host start {name}")


def _unreached(place: ServiceLocation, reason: str) -> Outcome:
    return Outcome(place.name, SILENT, f"{place.name} was not asked: {place.cell.name} does not answer ({reason}). "
               "When it does, run this again; see: manage.py cell_list.")  # fmt: skip


def _forecast(asked: HostCommand, looks: Sequence[ServiceSnapshot]) -> int:
    """Print what a drain would wait for; change nothing."""
    ends = [Outcome(one.place.name, DONE if one.service else SILENT, _forecast_one(one)) for one in looks]
    if asked.migrate:
        ends = [Outcome(end.host, end.code, f"{_would_move(one)}\nThen: {end.sentence}") if one.service else end
                for one, end in zip(looks, ends, strict=True)]  # fmt: skip
    if asked.shutdown_guests:
        ends = [Outcome(end.host, end.code, f"{shutdown_guests.forecast(one)}\nThen: {end.sentence}")
                for one, end in zip(looks, ends, strict=True)]  # fmt: skip
    asked.screen.once(looks)
    asked.screen.end(looks, ends)
    return worst([end.code for end in ends])


def _forecast_one(one: ServiceSnapshot) -> str:
    name, operations = one.place.name, one.operations
    if one.service is None:
        return _never_seen(one).sentence
    if one.state in ("stopped", "down"):
        return f"{name} is {one.state}: nothing to drain."
    if not operations:
        waits = counted(one.waiting, "request waits", "requests wait")
        return f"{name} would be drained at once: nothing is in progress. {waits} for it."
    known = [op.seconds_left for op in operations if op.seconds_left is not None]
    if len(known) == len(operations):
        until = f"within {span(max(known))}"
    else:
        endless = len(operations) - len(known)
        until = f"nobody can say when: {endless} of them {'has' if endless == 1 else 'have'} no deadline"
    blockers = "".join(f"\n  ! {op.action} of {op.server_id}: {op.blocker}" for op in one.blockers)
    would = f"{name}: {counted(len(operations), 'operation')} would have to end, {until}"
    return f"{would}. {counted(one.waiting, 'request')} would wait.{blockers}"


def _would_move(one: ServiceSnapshot) -> str:
    """Return which servers would leave, which could not, and whether there is room."""

    def work(_: Cell) -> Forecast:
        return drain_dry_run.of_host(one.place.name)

    if settings.ROLE == "host":
        return f"{one.place.name}: what would move is to be seen where the global database is known."
    gathered = scatter.gather([one.place.cell], work, timeout=ASK_SECONDS)
    found = gathered.answers.get(one.place.cell.id)
    if found is None:
        return f"{one.place.name}: its cell does not answer."
    lines = "".join(f"\n  ! {line.server_id}: {line.why}" for line in (*found.blocked, *found.homeless))
    return f"{one.place.name}: {found.sentence}{lines}"
