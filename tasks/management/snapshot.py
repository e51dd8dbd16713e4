"""Where the service of a name keeps its record, and one look at that record."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from cells import scatter
from cells.models import CELL0, Cell, HostMapping
from compute.hosts import drain, drain_moves, guest_shutdown
from compute.hosts.drain import OpenOperation
from compute.hosts.drain_moves import DrainMoves
from compute.hosts.guest_shutdown import GuestShutdown
from compute.models import Service
from compute.models.host import COMPUTE
from tasks import worker_process
from tasks.worker import BINARIES
from tasks.worker_process import WorkerNode

SHOWN = 500  # services read from one cell


@dataclass(frozen=True, slots=True)
class ServiceLocation:
    """A service: its name, its binary, and the cell with its record."""

    name: str
    binary: str
    cell: Cell
    node: WorkerNode | None = None  # its process, where that is on this machine
    shutdown: str = ""  # the request id of its guests' shutdown, if that is followed

    @property
    def pid(self) -> int | None:
        """The pid of its process, if that runs on this machine."""
        return self.node.daemon.pid() if self.node else None


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """One look at a service. `service` is None when its cell does not answer, or it never beat."""

    place: ServiceLocation
    service: Service | None = None
    operations: Sequence[OpenOperation] = ()
    waiting: int = 0
    moves: DrainMoves = field(default_factory=DrainMoves)  # drain migrations, away and back
    guests: tuple[GuestShutdown, ...] = ()  # that are shut down with it
    down: str = ""  # why its cell does not answer
    at: datetime = field(default_factory=timezone.now)

    @property
    def state(self) -> str:
        """One word: unknown, never seen, stopped, down, asked, emptying, draining, drained, up."""
        if self.down:
            return "unknown"
        if self.service is None:
            return "never seen"
        if self.service.ended_at is not None:
            return "stopped"
        if not self.service.is_up:
            return "down"
        if self.service.drain_wanted and self.service.draining_since is None:
            return "asked"
        return self.service.drain_state or "up"

    @property
    def beat_age(self) -> float | None:
        """Seconds since its last heartbeat."""
        seen = self.service and self.service.last_seen_up
        return (self.at - seen).total_seconds() if seen else None

    @property
    def blockers(self) -> list[OpenOperation]:
        """Operations that may delay a drain for long."""
        return [one for one in self.operations if one.blocker]


def find(
    names: Sequence[str], folder: Path, run: Path, logs: Path
) -> tuple[list[ServiceLocation], list[str], list[str]]:
    """Return the places of the names in their order, the unknown names, and the cells that did not answer.

    A process on this machine is known by its env file, which also works where there is no global database.
    """
    found: dict[str, ServiceLocation] = {}
    for name in names:
        process = local(name, folder, run, logs)
        if process is not None:
            found[name] = _by_env_file(process)
    if settings.ROLE == "host" and settings.HOST in names:  # also where a unit's env file has another name
        process = local(settings.HOST, folder, run, logs)
        found[settings.HOST] = _ourselves(process)
    rest = [name for name in names if name not in found]
    silent: list[str] = []
    if rest and settings.ROLE != "host":
        mapped = HostMapping.objects.select_related("cell").filter(host__in=rest)
        found |= {row.host: ServiceLocation(row.host, COMPUTE, row.cell) for row in mapped}
        rest = [name for name in rest if name not in found]
    if rest and settings.ROLE != "host":
        services, silent = _by_service(rest)
        found |= services
    wanted = list(dict.fromkeys(names))
    return [found[name] for name in wanted if name in found], [n for n in wanted if n not in found], silent


def local(name: str, folder: Path, run: Path, logs: Path) -> WorkerNode | None:
    """Return the worker of this name on this machine.

    None when it has no env file here, one of something else, or one that this user may not read.
    """
    if not worker_process.NAME.fullmatch(name):
        return None
    process = WorkerNode(name, folder / f"{name}.env", run, logs)
    try:
        told = worker_process.read(process.env_file)
    except OSError:  # another user's file
        return None
    named = told.get("STILLWATER_HOST") or socket.gethostname()
    return process if process.role and named == name else None


def look(places: Sequence[ServiceLocation], *, closely: bool = True) -> list[ServiceSnapshot]:
    """Look at all places, each cell once and all cells at the same time. `closely`: with their operations."""
    by_cell: dict[str, list[ServiceLocation]] = {}
    for place in places:
        by_cell.setdefault(place.cell.id, []).append(place)

    def ask(cell: Cell) -> dict[str, ServiceSnapshot]:
        return {place.name: _look_at(place, closely=closely) for place in by_cell[cell.id]}

    gathered = scatter.gather([group[0].cell for group in by_cell.values()], ask)
    looks = {name: one for answer in gathered.values() for name, one in answer.items()}
    return [looks.get(p.name) or ServiceSnapshot(p, down=gathered.down[p.cell.id].reason) for p in places]


def _look_at(place: ServiceLocation, *, closely: bool) -> ServiceSnapshot:
    service = Service.objects.filter(binary=place.binary, host=place.name).first()
    if service is None or not closely:
        return ServiceSnapshot(place, service)
    if place.binary != COMPUTE:
        return ServiceSnapshot(place, service, drain.operations(service))
    operations, waiting = drain.operations(service), drain.waiting(place.name)
    guests = guest_shutdown.read(place.name, place.shutdown)
    return ServiceSnapshot(place, service, operations, waiting, drain_moves.read(place.name), guests)


def _by_env_file(process: WorkerNode) -> ServiceLocation:
    told = worker_process.read(process.env_file)
    if process.role == "scheduler":  # its record is in cell0, which the global database knows
        cell = _cell0()
    else:
        cell = Cell(
            id=told.get("STILLWATER_CELL_UUID", ""), name=told.get("STILLWATER_CELL_NAME", "") or "its cell",
            database_url=told.get("STILLWATER_CELL_DATABASE_URL", ""),
            broker_url=told.get("STILLWATER_CELL_BROKER_URL", ""),
        )  # fmt: skip
    return ServiceLocation(process.name, BINARIES[process.role], cell, process)


def _ourselves(process: WorkerNode | None) -> ServiceLocation:
    """Return the place of the host whose settings these are."""
    cell = Cell(
        id=settings.CELL_UUID, name=settings.CELL_NAME or "its cell", database_url=settings.CELL_DATABASE_URL,
        broker_url=settings.CELL_BROKER_URL,
    )  # fmt: skip
    return ServiceLocation(settings.HOST, COMPUTE, cell, process)


def _cell0() -> Cell:
    """Return the row of cell0; one without a database when the global one is away.

    A process is stopped all the same.
    """
    unknown = Cell(id=CELL0, name="cell0")
    try:
        return (Cell.objects.filter(pk=CELL0).first() if settings.ROLE != "host" else None) or unknown
    except DatabaseError:
        return unknown


def _by_service(names: Sequence[str]) -> tuple[dict[str, ServiceLocation], list[str]]:
    """Return the services of the names by asking every cell, and the cells that did not answer.

    Conductors and schedulers have no mapping.
    """
    cells = list(Cell.objects.order_by("name"))

    def ask(_: Cell) -> list[tuple[str, str]]:
        found = Service.objects.filter(host__in=names).order_by("binary").values_list("host", "binary")
        return list(found[:SHOWN])

    gathered = scatter.gather(cells, ask)
    places: dict[str, ServiceLocation] = {}
    for cell in cells:
        for name, binary in gathered.answers.get(cell.id, ()):
            if name not in places or binary == COMPUTE:
                places[name] = ServiceLocation(name, binary, cell)
    return places, [cell.name for cell in cells if cell.id in gathered.down]


def facts(one: ServiceSnapshot) -> dict[str, Any]:
    """Return a look as JSON has it."""
    service = one.service
    return {
        "host": one.place.name, "binary": one.place.binary, "cell": one.place.cell.name, "state": one.state,
        "why": one.down or None, "pid": one.place.pid,
        "heartbeat_age": rounded(one.beat_age),
        "version": service.version if service else None,
        "incarnation": (service.incarnation or None) if service else None,
        "disabled": service.disabled if service else None,
        "disabled_reason": service.disabled_reason if service else None,
        "drain": _drain(service) if service else None,
        "draining_since": service.draining_since if service else None,
        "drained_at": service.drained_at if service else None,
        "ended_at": service.ended_at if service else None,
        "in_progress": in_progress(one),
        "waiting": one.waiting,
        "operations": operations([one]),
        "moves": moves(one),
        "guests": guests(one),
    }  # fmt: skip


def rounded(seconds: float | None) -> float | None:
    """Return seconds rounded to a tenth."""
    return None if seconds is None else round(seconds, 1)


def in_progress(one: ServiceSnapshot) -> int | None:
    """Return how many operations need it; of a service that stopped, how many it left unfinished."""
    if one.service is None:
        return None
    return one.service.in_progress if one.state == "stopped" else len(one.operations)


def operations(looks: Iterable[ServiceSnapshot]) -> list[dict[str, Any]]:
    """Return the operations in progress, a row each."""
    return [
        {
            "host": one.place.name, "server": op.server_id, "operation": op.action, "step": op.step,
            "state": op.state, "since": op.since, "age": round(max(0.0, (one.at - op.since).total_seconds()), 1),
            "ends_within": rounded(op.seconds_left),
            "waits_for": op.waits_for, "blocker": op.blocker or None, "request_id": op.request_id,
        }
        for one in looks for op in one.operations
    ]  # fmt: skip


def moves(one: ServiceSnapshot) -> dict[str, Any] | None:
    """Return the drain migrations of its servers; None where there are none."""
    found = one.moves
    if not found.lines:
        return None
    return {
        "parallel": one.service.drain_moves if one.service else 0, "total": len(found.lines), "away": len(found.away),
        "moving": len(found.under_way), "blocked": len(found.blocked), "coming": len(found.coming),
        "servers": [
            {"server": line.server_id, "state": line.state, "at": line.at, "to": line.to or None,
             "per_cent": line.percent, "why": line.why or None, "tries": line.tries, "next_try": line.next_try}
            for line in found.lines
        ],
    }  # fmt: skip


def guests(one: ServiceSnapshot) -> list[dict[str, Any]] | None:
    """Return the guests that are shut down with it; None where there are none."""
    rows = [
        {"server": line.server_id, "name": line.name, "priority": line.priority, "state": line.state,
         "seconds_left": rounded(line.seconds_left), "signals": line.signals, "words": line.words or None}
        for line in one.guests
    ]  # fmt: skip
    return rows or None


def _drain(service: Service) -> dict[str, Any] | None:
    if not service.drain_by and not service.drain_wanted:
        return None
    return {
        "wanted": service.drain_wanted, "by": service.drain_by, "reason": service.drain_reason or None,
        "asked_at": service.drain_asked_at, "deadline": service.drain_deadline,
        "then_exit": service.drain_then_exit,
    }  # fmt: skip
