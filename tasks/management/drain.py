"""`host drain` and `host undrain`: write a drain request into the service record, and follow it.

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
from cloud.durations import format_duration
from cloud.words import counted
from compute.hosts import drain as drain_requests
from compute.hosts import drain_dry_run, guest_shutdown
from compute.hosts.drain_moves import AT_ONCE, DrainMove
from compute.models import Service
from tasks.management import shutdown_guests
from tasks.management.options import HostCommand
from tasks.management.outcome import DONE, SILENT, Outcome
from tasks.management.output import render_page
from tasks.management.snapshot import ServiceSnapshot, take_snapshots
from tasks.management.wait import Goal, drained, follow, undrained

RESERVE = 10.0  # seconds at the end of a drain's time in which its guests must be off; at most a tenth of it


def drain(command: HostCommand) -> int:
    """Request the drain, then follow until each host is drained or has ended. Return the exit code."""
    snapshots = take_snapshots(command.locate(compute=command.migrate or command.shutdown_guests))
    if command.dry_run:
        return _dry_run(command, snapshots)
    shutdowns: dict[str, str] = {}
    outcomes = {one.name: outcome for one in snapshots if (outcome := _request_drain(command, one, shutdowns))}
    snapshots = [replace(one, location=replace(one.location, shutdown=shutdowns.get(one.name, "")))
                 for one in snapshots]  # fmt: skip
    if command.shutdown_guests:
        dead = [one for one in snapshots if one.down or (one.service is not None and one.is_dead)]
        outcomes |= {one.name: shutdown_guests.shut_down_without_worker(command, one) for one in dead}
    if command.no_wait:
        sentence = "{0} is requested to drain. Follow it: manage.py host drain {0}"
        outcomes = {one.name: Outcome(DONE, sentence.format(one.name)) for one in snapshots} | outcomes
    return _follow(command, snapshots, outcomes, drained(timezone.now()))


def undrain(command: HostCommand) -> int:
    """Take the drain request back; wait until each host takes work and, with `--return`, has its servers."""
    snapshots = take_snapshots(command.locate(compute=command.bring_back))
    beats = {one.name: one.service.last_seen_up for one in snapshots if one.service and one.service.drain_wanted}
    outcomes = {one.name: outcome for one in snapshots if (outcome := _withdraw(command, one))}
    return _follow(command, snapshots, outcomes, undrained(beats))


def _follow(
    command: HostCommand, snapshots: Sequence[ServiceSnapshot], outcomes: dict[str, Outcome], goal: Goal
) -> int:
    """Follow the hosts that have no outcome yet, and print the outcomes of all. Return the exit code."""
    rest = [one.location for one in snapshots if one.name not in outcomes]
    latest = {one.name: one for one in snapshots}
    if rest:
        last, followed = follow(command, rest, goal)
        if command.shutdown_guests:
            followed = {one.name: shutdown_guests.complete(command, one, followed[one.name]) for one in last}
        outcomes |= followed
        latest |= {one.name: one for one in last}
    return command.output.end(list(latest.values()), {name: outcomes[name] for name in latest})


def _request_drain(command: HostCommand, one: ServiceSnapshot, shutdowns: dict[str, str]) -> Outcome | None:
    """Write the drain request, unless it is there already; return the outcome, if there is nothing to follow."""
    service, name = one.service, one.name
    if service is None:
        return _no_record(one)
    stopped = one.state == "stopped"
    if stopped and command.then_exit and not command.migrate:
        return Outcome(DONE, f"{name} is stopped already: nothing to drain.")
    with_guests = command.shutdown_guests and not one.is_dead
    if with_guests:
        shutdown_guests.name_paused(command, one.location)
    if with_guests or not _is_requested(command, service):
        failed = _write(one, lambda: _write_requests(command, service, shutdowns, with_guests=with_guests))
        if failed:
            return failed
    elif not stopped:
        age = (timezone.now() - service.drain_asked_at).total_seconds() if service.drain_asked_at else 0.0
        why = f" ({service.drain_reason})" if service.drain_reason else ""
        command.output.say(f"{service.drain_by} requested {name} to drain {format_duration(age)} ago{why}; following.")
    if stopped and command.migrate:
        return Outcome(SILENT, f"{name} is stopped: its servers cannot leave. They do when it is started: "
                       f"manage.py host start {name}")  # fmt: skip
    if stopped:
        return Outcome(DONE, f"{name} is stopped: nothing to drain. When it is started it takes no work until: "
                       f"manage.py host undrain {name}")  # fmt: skip
    return None


def _write_requests(
    command: HostCommand, service: Service, shutdowns: dict[str, str], *, with_guests: bool
) -> None:  # fmt: skip
    """Write the drain request and the guest shutdown together: an empty host would be drained in between."""
    with transaction.atomic(using=current_alias()):
        if not _is_requested(command, service):
            _write_drain_request(command, service)
        if with_guests:
            seconds = command.seconds - min(RESERVE, command.seconds / 10) if command.seconds else None
            shutdowns[service.host] = guest_shutdown.ask(
                service.host, by=operator_name(), at_once=command.parallel, seconds=seconds
            )


def _withdraw(command: HostCommand, one: ServiceSnapshot) -> Outcome | None:
    service = one.service
    if service is None:
        return _no_record(one)
    if not (service.drain_wanted or service.drain_moves or command.bring_back):
        return None
    kept: list[DrainMove] = []
    at_once = (command.parallel or AT_ONCE) if command.bring_back else 0
    failed = _write(one, lambda: kept.extend(drain_requests.withdraw(service, bring_back=at_once)))
    for move in kept:
        command.output.say(f"{one.name}: {move.server_id} does not return: it was moved to {move.at} meanwhile.")
    return failed


def _is_requested(command: HostCommand, service: Service) -> bool:
    """Return whether the request changes nothing. Only what the command line says is compared."""
    if not _is_draining(service) or (command.then_exit and not service.drain_then_exit):
        return False
    if _parallel_moves(command, service) != service.drain_moves:
        return False
    if command.reason and command.reason[:255] != service.drain_reason:
        return False
    if command.seconds is None:
        return True
    deadline, since = service.drain_deadline, service.drain_asked_at
    had = (deadline - since).total_seconds() if deadline and since else 0.0
    return abs(had - command.seconds) < 1


def _write_drain_request(command: HostCommand, service: Service) -> None:
    """Write the drain request. What the command line does not say stays as it was requested before."""
    draining = _is_draining(service)
    deadline, seconds = service.drain_deadline if draining else None, command.seconds
    if seconds is None and deadline is not None:
        left = (deadline - timezone.now()).total_seconds()
        seconds = left if left > 0 else None  # a past deadline would end the process at once, if it is to exit now
    drain_requests.request(
        service, by=operator_name(), reason=command.reason or service.drain_reason, seconds=seconds,
        then_exit=command.then_exit or (draining and service.drain_then_exit), moves=_parallel_moves(command, service),
    )  # fmt: skip


def _is_draining(service: Service) -> bool:
    """Return whether a drain is requested already."""
    return service.drain_wanted or service.drain_state == "emptying"


def _parallel_moves(command: HostCommand, service: Service) -> int:
    """Return how many servers at a time leave first; 0: they stay."""
    before = service.drain_moves if _is_draining(service) else 0
    if command.stay or command.shutdown_guests:
        return 0
    return command.parallel or before or AT_ONCE if command.migrate else before


def _write(one: ServiceSnapshot, write: Callable[[], None]) -> Outcome | None:
    failure = one.location.run_in_cell(write)
    return _not_requested(one, failure.reason) if isinstance(failure, scatter.CellFailure) else None


def _no_record(one: ServiceSnapshot) -> Outcome:
    if one.down:
        return _not_requested(one, one.down)
    return Outcome(SILENT, f"{one.name} has never been seen. On its machine: manage.py host start {one.name}")


def _not_requested(one: ServiceSnapshot, reason: str) -> Outcome:
    return Outcome(SILENT, f"{one.name}: nothing was requested, as {one.location.cell.name} does not answer "
                   f"({reason}). Run this again when it does; see: manage.py cell_list.")  # fmt: skip


def _dry_run(command: HostCommand, snapshots: Sequence[ServiceSnapshot]) -> int:
    """Print what a drain would wait for; change nothing."""
    outcomes = {}
    for one in snapshots:
        sentences = [_predict_moves(one)] if command.migrate and one.service else []
        sentences += [shutdown_guests.predict(one)] if command.shutdown_guests else []
        sentence = "\nThen: ".join([*sentences, _predict_drain(one)])
        outcomes[one.name] = Outcome(DONE if one.service else SILENT, sentence)
    command.output.print_page(render_page(snapshots))
    return command.output.end(snapshots, outcomes)


def _predict_drain(one: ServiceSnapshot) -> str:
    name, operations = one.name, one.operations
    if one.service is None:
        return _no_record(one).sentence
    if one.state in ("stopped", "down"):
        return f"{name} is {one.state}: nothing to drain."
    if not operations:
        waits = counted(one.waiting, "request waits", "requests wait")
        return f"{name} would be drained at once: nothing is in progress. {waits} for it."
    known = [op.seconds_left for op in operations if op.seconds_left is not None]
    endless = len(operations) - len(known)
    until = f"within {format_duration(max(known, default=0))}"
    if endless:
        until = f"but {endless} of them {'has' if endless == 1 else 'have'} no deadline"
    blockers = "".join(f"\n  ! {op.action} of {op.server_id}: {op.blocker}" for op in operations if op.blocker)
    would = f"{name}: {counted(len(operations), 'operation')} would have to end, {until}"
    return f"{would}. {counted(one.waiting, 'request')} would wait.{blockers}"


def _predict_moves(one: ServiceSnapshot) -> str:
    """Return which servers would leave, which could not, and whether there is room."""
    if settings.ROLE == "host":
        return f"{one.name}: to see which servers would leave, run this where the global database is."
    found = one.location.run_in_cell(lambda: drain_dry_run.of_host(one.name))
    if isinstance(found, scatter.CellFailure):
        return f"{one.name}: its cell does not answer."
    lines = "".join(f"\n  ! {line.server_id}: {line.why}" for line in (*found.blocked, *found.homeless))
    return f"{one.name}: {found.sentence}{lines}"
