"""Where the service of a name keeps its record, and one reading of that record."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

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
READ_SECONDS = 5.0  # at least: an operator would only repeat a command that a busy machine was too slow for
ASK_SECONDS = 15.0  # writing a request also sends messages, which takes long while the broker is away
T = TypeVar("T")


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

    def run_in_cell(self, work: Callable[[], T]) -> T | scatter.CellFailure:
        """Run `work` with the cell of the service targeted; return its result, or why the cell does not answer."""
        gathered = scatter.gather([self.cell], lambda _: work(), timeout=ASK_SECONDS)
        return gathered.down[self.cell.id] if self.cell.id in gathered.down else gathered.answers[self.cell.id]


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """One reading of a service. `service` is None when its cell does not answer, or it never sent a heartbeat."""

    location: ServiceLocation
    service: Service | None = None
    operations: Sequence[OpenOperation] = ()
    waiting: int = 0
    moves: DrainMoves = field(default_factory=DrainMoves)  # drain migrations, away and back
    guests: tuple[GuestShutdown, ...] = ()  # that are shut down with it
    down: str = ""  # why its cell does not answer
    at: datetime = field(default_factory=timezone.now)

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.location.name

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
    def is_dead(self) -> bool:
        """Whether the worker is dead: by its process where that is known, else by its heartbeat."""
        node = self.location.node
        if node is not None:
            return self.location.pid is None and worker_process.pid_under_other_supervisor(node) is None
        return self.service is None or not self.service.beats

    @property
    def beat_age(self) -> float | None:
        """Seconds since its last heartbeat."""
        return self.age(self.service.last_seen_up) if self.service else None

    @property
    def in_progress(self) -> int | None:
        """How many operations need it; of a service that stopped, how many it left unfinished."""
        if self.service is None:
            return None
        return self.service.in_progress if self.state == "stopped" else len(self.operations)

    def age(self, since: datetime | None) -> float | None:
        """Return the seconds from `since` to this reading."""
        return (self.at - since).total_seconds() if since else None


def find_locations(
    names: Sequence[str], env_dir: Path, state: Path
) -> tuple[list[ServiceLocation], list[str], list[str]]:
    """Return the locations of the names in their order, the unknown names, and the cells that did not answer.

    A process on this machine is known by its env file, which also works where there is no global database.
    """
    found: dict[str, ServiceLocation] = {}
    for name in names:
        node = find_node(name, env_dir, state)
        if settings.ROLE == "host" and name == settings.HOST:  # also where a unit's env file has another name
            found[name] = ServiceLocation(name, COMPUTE, _cell(
                settings.CELL_UUID, settings.CELL_NAME, settings.CELL_DATABASE_URL, settings.CELL_BROKER_URL), node)
        elif node is not None:
            found[name] = _by_env_file(node)
    silent: list[str] = []
    if settings.ROLE != "host":
        mapped = HostMapping.objects.select_related("cell").filter(host__in=[n for n in names if n not in found])
        found |= {row.host: ServiceLocation(row.host, COMPUTE, row.cell) for row in mapped}
        rest = [name for name in names if name not in found]
        if rest:
            services, silent = _by_service(rest)
            found |= services
    wanted = list(dict.fromkeys(names))
    return [found[name] for name in wanted if name in found], [n for n in wanted if n not in found], silent


def find_node(name: str, env_dir: Path, state: Path) -> WorkerNode | None:
    """Return the worker of this name on this machine.

    None when it has no env file here, one of something else, or one that this user may not read.
    """
    if not worker_process.NAME.fullmatch(name):
        return None
    node = WorkerNode(name, env_dir / f"{name}.env", state / "run", state / "log")
    try:
        host = worker_process.read(node.env_file).get("STILLWATER_HOST") or socket.gethostname()
    except OSError:  # another user's file
        return None
    return node if node.role and host == name else None


def take_snapshots(locations: Sequence[ServiceLocation], *, details: bool = True) -> list[ServiceSnapshot]:
    """Read all services, each cell once and all cells at the same time. `details`: with their operations."""
    by_cell: dict[str, list[ServiceLocation]] = {}
    for one in locations:
        by_cell.setdefault(one.cell.id, []).append(one)

    def read(cell: Cell) -> dict[str, ServiceSnapshot]:
        return {one.name: _read(one, details=details) for one in by_cell[cell.id]}

    seconds = max(settings.CELL_TIMEOUT, READ_SECONDS)
    gathered = scatter.gather([group[0].cell for group in by_cell.values()], read, timeout=seconds)
    found = {name: one for answer in gathered.values() for name, one in answer.items()}
    return [found.get(one.name) or ServiceSnapshot(one, down=gathered.down[one.cell.id].reason) for one in locations]


def _read(location: ServiceLocation, *, details: bool) -> ServiceSnapshot:
    service = Service.objects.filter(binary=location.binary, host=location.name).first()
    if service is None or not details:
        return ServiceSnapshot(location, service)
    if location.binary != COMPUTE:
        return ServiceSnapshot(location, service, drain.operations(service))
    operations, waiting = drain.operations(service), drain.waiting(location.name)
    guests = guest_shutdown.read(location.name, location.shutdown)
    return ServiceSnapshot(location, service, operations, waiting, drain_moves.read(location.name), guests)


def _by_env_file(node: WorkerNode) -> ServiceLocation:
    env = worker_process.read(node.env_file)
    if node.role == "scheduler":  # its record is in cell0, which the global database knows
        return ServiceLocation(node.name, BINARIES[node.role], _cell0(), node)
    values = (env.get(f"STILLWATER_CELL_{key}", "") for key in ("UUID", "NAME", "DATABASE_URL", "BROKER_URL"))
    return ServiceLocation(node.name, BINARIES[node.role], _cell(*values), node)


def _cell(uuid: str, name: str, database_url: str, broker_url: str) -> Cell:
    return Cell(id=uuid, name=name or "its cell", database_url=database_url, broker_url=broker_url)


def _cell0() -> Cell:
    """Return the row of cell0; one without a database when the global one is away: a process can still be stopped."""
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

    def read(_: Cell) -> list[tuple[str, str]]:
        found = Service.objects.filter(host__in=names).order_by("binary").values_list("host", "binary")
        return list(found[:SHOWN])

    gathered = scatter.gather(cells, read)
    locations: dict[str, ServiceLocation] = {}
    for cell in cells:
        for name, binary in gathered.answers.get(cell.id, ()):
            if name not in locations or binary == COMPUTE:
                locations[name] = ServiceLocation(name, binary, cell)
    return locations, [cell.name for cell in cells if cell.id in gathered.down]


def to_json(one: ServiceSnapshot) -> dict[str, Any]:
    """Return a snapshot as JSON has it."""
    service = one.service
    names = ("disabled", "disabled_reason", "draining_since", "drained_at", "ended_at")
    return {
        "host": one.name, "binary": one.location.binary, "cell": one.location.cell.name, "state": one.state,
        "why": one.down or None, "pid": one.location.pid, "heartbeat_age": rounded(one.beat_age),
        "version": service.version if service else None,
        "incarnation": (service.incarnation or None) if service else None,
        **{name: getattr(service, name, None) for name in names},
        "drain": _drain_to_json(service) if service else None,
        "in_progress": one.in_progress, "waiting": one.waiting, "operations": operations_to_json([one]),
        "moves": _moves_to_json(one) if one.moves.lines else None,
        "guests": [
            {"server": line.server_id, "name": line.name, "priority": line.priority, "state": line.state,
             "seconds_left": rounded(line.seconds_left), "signals": line.signals, "words": line.words or None}
            for line in one.guests
        ] or None,
    }  # fmt: skip


def rounded(seconds: float | None) -> float | None:
    """Return seconds rounded to a tenth."""
    return None if seconds is None else round(seconds, 1)


def operations_to_json(snapshots: Sequence[ServiceSnapshot]) -> list[dict[str, Any]]:
    """Return the operations in progress, a row each."""
    return [
        {
            "host": one.name, "server": op.server_id, "operation": op.action, "step": op.step,
            "state": op.state, "since": op.since, "age": rounded(max(0.0, one.age(op.since) or 0.0)),
            "ends_within": rounded(op.seconds_left),
            "waits_for": op.waits_for, "blocker": op.blocker or None, "request_id": op.request_id,
        }
        for one in snapshots for op in one.operations
    ]  # fmt: skip


def _moves_to_json(one: ServiceSnapshot) -> dict[str, Any]:
    found = one.moves
    return {
        "parallel": one.service.drain_moves if one.service else 0, "total": len(found.lines), "away": len(found.away),
        "moving": len(found.under_way), "blocked": len(found.blocked), "coming": len(found.coming),
        "servers": [
            {"server": line.server_id, "state": line.state, "at": line.at, "to": line.to or None,
             "per_cent": line.percent, "why": line.why or None, "tries": line.tries, "next_try": line.next_try}
            for line in found.lines
        ],
    }  # fmt: skip


def _drain_to_json(service: Service) -> dict[str, Any] | None:
    if not service.drain_by and not service.drain_wanted:
        return None
    return {
        "wanted": service.drain_wanted, "by": service.drain_by, "reason": service.drain_reason or None,
        "asked_at": service.drain_asked_at, "deadline": service.drain_deadline,
        "then_exit": service.drain_then_exit,
    }  # fmt: skip
