"""`host shutdown-guests`, and the same as a part of `host drain` and `host stop`.

The request is in the journal, and the host carries it out whether or not the command follows. Where no worker does,
the guests of this very machine are shut down through its hypervisor (`local_shutdown.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cells import scatter
from cells.management.options import operator_name
from cloud.terminal import sanitize
from cloud.words import counted
from compute.hosts import guest_shutdown
from tasks.management import local_shutdown
from tasks.management.options import HostCommand
from tasks.management.outcome import DONE, SILENT, UNFINISHED, CommandRefused, Outcome
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, take_snapshots
from tasks.management.wait import follow, guests_off

ROUNDS = 3  # as guests may arrive or be started meanwhile on a host that takes work


def shutdown_guests(command: HostCommand) -> int:
    """Request the shutdown, then follow until every guest is off, or the request is taken back.

    Return the exit code.
    """
    snapshots = take_snapshots(command.locate(compute=True))
    if not command.force:
        _refuse_working_hosts(snapshots)
    outcomes: dict[str, Outcome] = {}
    for _ in range(ROUNDS):
        rest = [one for one in snapshots if one.name not in outcomes or outcomes[one.name].code == DONE]
        new = _run_round(command, rest, first=not outcomes)
        outcomes |= new
        if not new or command.no_wait or not command.force:
            break
    return command.output.end(snapshots, {one.name: outcomes[one.name] for one in snapshots})


def _run_round(command: HostCommand, snapshots: Sequence[ServiceSnapshot], *, first: bool) -> dict[str, Outcome]:
    """Send the request to the hosts; return the outcomes of those that had something to do."""
    requested, outcomes = request_all(command, snapshots)
    outcomes = {name: one for name, one in outcomes.items() if first or one.code != DONE}
    if command.no_wait:
        sentence = "{0} is requested to shut its guests down. Follow it: manage.py host shutdown-guests {0}"
        return outcomes | {name: Outcome(DONE, sentence.format(name)) for name in requested}
    if requested:
        last, followed = follow(command, list(requested.values()), guests_off())
        outcomes |= {one.name: replace(complete(command, one, followed[one.name]), snapshot=one) for one in last}
    return outcomes


def request_all(
    command: HostCommand, snapshots: Sequence[ServiceSnapshot]
) -> tuple[dict[str, ServiceLocation], dict[str, Outcome]]:
    """Write all requests. Return by name the locations to follow, and the outcomes of the other hosts."""
    found = {one.name: _request(command, one) for one in snapshots}
    return ({name: one for name, one in found.items() if isinstance(one, ServiceLocation)},
            {name: one for name, one in found.items() if isinstance(one, Outcome)})  # fmt: skip


def _request(command: HostCommand, one: ServiceSnapshot) -> ServiceLocation | Outcome:
    """Write the request of a shutdown; return the location to follow, or the outcome if there is one already."""
    if one.down or one.is_dead:
        return shut_down_without_worker(command, one)
    name_paused(command, one.location)
    request_id = one.location.run_in_cell(
        lambda: guest_shutdown.ask(one.name, by=operator_name(), at_once=command.parallel, seconds=command.seconds)
    )
    if isinstance(request_id, scatter.CellFailure):
        return local_shutdown.shut_down(command, one, f"its cell does not answer ({request_id.reason})")
    if not request_id:
        return Outcome(DONE, f"{one.name}: no guest is on.")
    return replace(one.location, shutdown=request_id)


def name_paused(command: HostCommand, location: ServiceLocation) -> None:
    """Name the paused guests before they are forced off."""
    paused = location.run_in_cell(lambda: guest_shutdown.paused(location.name))
    for one in paused if isinstance(paused, list) else ():
        guest = f"{sanitize(one.display_name)} ({one.uuid})"
        command.output.say(f"{location.name}: {guest} is paused and will be forced off: its memory is lost.")


def predict(one: ServiceSnapshot) -> str:
    """Return how many guests would go off, and which would lose their memory; change nothing."""
    found = one.location.run_in_cell(
        lambda: (guest_shutdown.are_on(one.name).count(), guest_shutdown.paused(one.name))
    )
    if isinstance(found, scatter.CellFailure):
        return f"{one.name}: its cell does not answer."
    count, paused = found
    lost = "".join(f"\n  ! {sanitize(guest.display_name)} is paused: its memory would be lost" for guest in paused)
    return f"{one.name}: {counted(count, 'guest')} would go off.{lost}"


def shut_down_without_worker(command: HostCommand, one: ServiceSnapshot, why: str = "") -> Outcome:
    """Shut down, from this machine if possible, the guests of a host that does not carry the request out."""
    down = f"its cell does not answer ({one.down})" if one.down else ""
    return local_shutdown.shut_down(command, one, down or why or "its worker does not run")


def complete(command: HostCommand, one: ServiceSnapshot, outcome: Outcome) -> Outcome:
    """Return the outcome; shut down, from this machine if possible, the guests that the host has not."""
    if outcome.code == SILENT:
        return shut_down_without_worker(command, one, "it does not continue the shutdown")
    if any(not line.is_over for line in one.guests) and one.is_dead:
        return local_shutdown.shut_down(command, one, "its worker has ended, with guests on")
    if any(line.state == "failed" for line in one.guests):
        return replace(outcome, code=max(outcome.code, UNFINISHED))
    return _shut_down_late_guests(command, one, outcome) if outcome.code == DONE else outcome


def _shut_down_late_guests(command: HostCommand, one: ServiceSnapshot, outcome: Outcome) -> Outcome:
    """Shut down the guests that came by a move which was under way at the request."""
    late = one.location.run_in_cell(lambda: bool(guest_shutdown.still_on(one.name)))
    if late is not True:
        return outcome
    found = _request(command, one)
    if isinstance(found, ServiceLocation):
        [one], outcomes = follow(command, [found], guests_off())
        found = outcomes[one.name]
    return Outcome(found.code, f"{outcome.sentence}\n{found.sentence}", found.snapshot or one)


def _refuse_working_hosts(snapshots: Sequence[ServiceSnapshot]) -> None:
    """Raise CommandRefused for a host that takes work.

    It gets new servers, and users start old ones, while others are shut down.
    """
    working = [one.name for one in snapshots if one.service and one.service.takes_requests and not one.is_dead]
    if working:
        raise CommandRefused(
            f"{', '.join(working)}: takes work, so servers would arrive and be started meanwhile. Close it first: "
            f"manage.py host drain {' '.join(working)} --shutdown-guests; or: --force"
        )
