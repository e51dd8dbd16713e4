"""`host shutdown-guests`, and the same as a part of `host drain` and `host stop`.

The request is in the journal, and the host carries it out whether or not the command follows. Where no worker does,
the guests of this very machine are shut down through its hypervisor (`local_shutdown.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from cells import scatter
from cells.management.options import operator_name
from cells.models import Cell
from cloud.words import counted
from compute.hosts import guest_shutdown
from compute.models.host import COMPUTE
from tasks.management import guest_table, local_shutdown
from tasks.management.options import CommandRefused, HostCommand, worst
from tasks.management.output import Outcome
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, look
from tasks.management.wait import CANCELLED, DONE, SILENT, UNFINISHED, USAGE, Goal, follow

ASK_SECONDS = 15.0  # writing the rows also sends messages, which takes long while the broker is away
ROUNDS = 3  # rounds, as guests may arrive or be started meanwhile on a host that takes work


def shutdown_guests(asked: HostCommand) -> int:
    """Request the shutdown, then follow until every guest is off, or the request is taken back.

    Return the exit code.
    """
    looks = look(require_compute_hosts(asked.places()))
    if not asked.force:
        _must_be_closed(looks)
    ends: dict[str, Outcome] = {}
    for _ in range(ROUNDS):
        rest = [one for one in looks if one.place.name not in ends or ends[one.place.name].code == DONE]
        again = _round(asked, rest, first=not ends)
        if not again:
            break
        ends |= again
        if asked.no_wait or not asked.force:
            break
    found = [ends[one.place.name] for one in looks]
    asked.screen.end([end.look or one for end, one in zip(found, looks, strict=True)], found)
    return worst([end.code for end in found])


def _round(asked: HostCommand, looks: Sequence[ServiceSnapshot], *, first: bool) -> dict[str, Outcome]:
    """Ask the hosts; return the outcomes of those that had something to do."""
    ends, places = {}, []
    for one in looks:
        place = ask(asked, one)
        if isinstance(place, ServiceLocation):
            places.append(place)
        elif first or place.code != DONE:
            ends[one.place.name] = place
    if asked.no_wait:
        return ends | {place.name: _asked(place) for place in places}
    if places:
        seen, found = follow(places, all_off(), asked.screen, asked.interval, asked.patience)
        for one, end in zip(seen, found, strict=True):
            ends[end.host] = replace(carried_out(asked, one, end), look=one)
    return ends


def ask(asked: HostCommand, one: ServiceSnapshot) -> ServiceLocation | Outcome:
    """Ask a host; return the place to look at, or the outcome if there is one already."""
    if one.down or local_shutdown.is_dead(one):
        return host_is_down(asked, one)
    tell_paused(asked, one.place)
    request_id, away = write_request(one.place, asked, asked.seconds)
    if away:
        return local_shutdown.shut_down(asked, one, f"its cell does not answer ({away})")
    if not request_id:
        return Outcome(one.place.name, DONE, f"{one.place.name}: no guest is on.")
    return replace(one.place, shutdown=request_id)


def write_request(place: ServiceLocation, asked: HostCommand, seconds: float | None) -> tuple[str, str]:
    """Write the request; return its request id, "" when no guest is on, and why the cell does not answer."""

    def write(_: Cell) -> str:
        return guest_shutdown.ask(place.name, by=operator_name(), at_once=asked.parallel, seconds=seconds)

    gathered = scatter.gather([place.cell], write, timeout=ASK_SECONDS)
    away = gathered.down.get(place.cell.id)
    return ("", away.reason) if away else (gathered.answers[place.cell.id], "")


def tell_paused(asked: HostCommand, place: ServiceLocation) -> None:
    """Name the paused guests before they are forced off."""

    def read(_: Cell) -> list[tuple[str, str]]:
        return [(one.display_name, one.uuid) for one in guest_shutdown.paused(place.name)]

    for name, uuid in scatter.gather([place.cell], read, timeout=ASK_SECONDS).answers.get(place.cell.id, ()):
        asked.screen.say(f"{place.name}: {name} ({uuid}) is paused and will be forced off: its memory is lost.")


def forecast(one: ServiceSnapshot) -> str:
    """Return how many guests would go off, and which would lose their memory; change nothing."""

    def read(_: Cell) -> tuple[int, list[str]]:
        name = one.place.name
        return guest_shutdown.are_on(name).count(), [server.display_name for server in guest_shutdown.paused(name)]

    found = scatter.gather([one.place.cell], read, timeout=ASK_SECONDS).answers.get(one.place.cell.id)
    if found is None:
        return f"{one.place.name}: its cell does not answer."
    lost = "".join(f"\n  ! {name} is paused: its memory would be lost" for name in found[1])
    return f"{one.place.name}: {counted(found[0], 'guest')} would go off.{lost}"


def all_off() -> Goal:
    """Return the goal that every guest is off, or stays on for a reason."""
    began = time.monotonic()

    def goal(one: ServiceSnapshot) -> tuple[int, str] | None:
        lines, name = one.guests, one.place.name
        if one.down or not lines:
            return None
        if all(line.is_over for line in lines):
            states = {line.state for line in lines}
            code = UNFINISHED if "failed" in states else CANCELLED if "called off" in states else DONE
            return code, guest_table.ended(name, lines, time.monotonic() - began)
        if one.place.node is not None and local_shutdown.is_dead(one):
            return SILENT, f"{name} ended with guests on."
        return None

    return goal


def host_is_down(asked: HostCommand, one: ServiceSnapshot) -> Outcome:
    """Shut down, from this machine if possible, the guests of a host that cannot be asked."""
    why = f"its cell does not answer ({one.down})" if one.down else "its worker does not run"
    return local_shutdown.shut_down(asked, one, why)


def carried_out(asked: HostCommand, one: ServiceSnapshot, end: Outcome) -> Outcome:
    """Return the outcome; shut down, from this machine if possible, the guests that the host has not."""
    if end.code == SILENT:
        if one.down:
            return host_is_down(asked, one)
        return local_shutdown.shut_down(asked, one, "it does not go on with it")
    if any(not line.is_over for line in one.guests) and local_shutdown.is_dead(one):
        return local_shutdown.shut_down(asked, one, "its worker has ended, with guests on")
    if any(line.state == "failed" for line in one.guests):
        return replace(end, code=max(end.code, UNFINISHED))
    return _late(asked, one, end) if end.code == DONE else end


def _late(asked: HostCommand, one: ServiceSnapshot, end: Outcome) -> Outcome:
    """Shut down the guests that came by a move which was under way at the request."""

    def read(_: Cell) -> bool:
        return bool(guest_shutdown.still_on(one.place.name))

    if not scatter.gather([one.place.cell], read, timeout=ASK_SECONDS).answers.get(one.place.cell.id):
        return end
    found: Outcome | ServiceLocation = ask(asked, one)
    if isinstance(found, ServiceLocation):
        [one], [found] = follow([found], all_off(), asked.screen, asked.interval, asked.patience)
    return Outcome(end.host, found.code, f"{end.sentence}\n{found.sentence}", found.look or one)


def ask_and_tell(
    asked: HostCommand, looks: Sequence[ServiceSnapshot]
) -> tuple[list[ServiceLocation], dict[str, Outcome]]:
    """Ask before the processes are told to end. Return the places to look at, and outcomes by host.

    A host has an outcome already when it cannot be asked, or no guest is on.
    """
    places, alone_ended = [], {}
    for one in looks:
        found = ask(replace(asked, seconds=None), one)
        places.append(found if isinstance(found, ServiceLocation) else one.place)
        if isinstance(found, Outcome):
            alone_ended[one.place.name] = found
    return places, alone_ended


def require_compute_hosts(places: Sequence[ServiceLocation]) -> Sequence[ServiceLocation]:
    """Return the places. Raises CommandRefused when one of them can have no guests."""
    others = [place.name for place in places if place.binary != COMPUTE]
    if others:
        raise CommandRefused(f"{', '.join(others)}: only compute hosts have guests.")
    return places


def _must_be_closed(looks: Sequence[ServiceSnapshot]) -> None:
    """Raise CommandRefused for a host that takes work.

    It gets new servers, and users start old ones, while others are shut down.
    """
    working = [one for one in looks if one.service is not None and not local_shutdown.is_dead(one)]
    open_ones = [one.place.name for one in working if one.service and one.service.takes_requests]
    if open_ones:
        names = " ".join(open_ones)
        raise CommandRefused(
            f"{', '.join(open_ones)}: takes work, so servers would come and be started meanwhile. Close it first: "
            f"manage.py host drain {names} --shutdown-guests; or: --force", USAGE,
        )  # fmt: skip


def _asked(place: ServiceLocation) -> Outcome:
    return Outcome(place.name, DONE, f"{place.name} is asked to shut its guests down. Follow it: "
               f"manage.py host shutdown-guests {place.name}")  # fmt: skip
