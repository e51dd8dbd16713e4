"""The services and hypervisors of all cells, read in parallel; down cells are named in the result, not raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db.models import Count, Q

from cells import cell_records, scatter
from cells.context import current_alias
from cells.models import Cell, HostMapping
from compute.hosts import drain, drain_moves
from compute.hosts.drain_moves import DrainMoves
from compute.models import ComputeNode, Instance, Service
from compute.models.host import COMPUTE, EVERY_NODE, EVERY_SERVICE
from compute.placement import aggregates

T = TypeVar("T")
INTERNAL_ZONE = "internal"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service and its cell."""

    cell: Cell
    service: Service
    waiting: int = 0  # requests not yet begun; counted only where a service of the cell drains
    moves: DrainMoves = field(default_factory=DrainMoves)  # read only where servers leave or return
    zone: str = INTERNAL_ZONE  # only compute hosts have another one


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """A compute node, its service, and its servers (if they were asked for)."""

    cell: Cell
    node: ComputeNode
    service: Service
    running: int = 0
    busy: int = 0
    servers: list[dict[str, str]] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        """The id that a marker names since microversion 2.53."""
        return self.node.uuid

    @property
    def number(self) -> int:
        """The id that a marker names before microversion 2.53."""
        return number(self.node.uuid)


@dataclass(frozen=True, slots=True)
class CellResults(Generic[T]):
    """The records of the cells that answered, and the cells that did not."""

    found: list[T]
    down: list[Cell]


def number(uuid: str) -> int:
    """Return the integer id of a record before 2.53: 48 bits of its uuid, as row ids are not unique over cells."""
    return UUID(uuid).int >> 80


def services(host: str = "", binary: str = "") -> CellResults[ServiceRecord]:
    """Return the services of every cell, cell0 included. One query per cell, two where a service drains.

    Three more where servers leave a host or return.
    """

    known = aggregates.by_host()

    def read(cell: Cell) -> list[ServiceRecord]:
        everything = EVERY_SERVICE.read(current_alias())
        found = [one for one in everything if host in ("", one.host) and binary in ("", one.binary)]
        waiting = drain.waiting_by_host() if any(one.drain_state for one in found) else {}
        moves = drain_moves.read_all([one.host for one in found if one.drain_moves])
        return [
            ServiceRecord(
                cell, one, waiting.get(one.host, 0), moves.get(one.host, DrainMoves()), aggregates.zone_of(one, known)
            ) if one.binary == COMPUTE else ServiceRecord(cell, one)
            for one in found
        ]  # fmt: skip

    return _everywhere(read)


def hypervisors(*, counts: bool = False, servers: bool = False) -> CellResults[Hypervisor]:
    """Return the compute nodes of every cell that have a service; at most four queries per cell."""

    def read(cell: Cell) -> list[Hypervisor]:
        alias = current_alias()
        by_host = {service.host: service for service in EVERY_SERVICE.read(alias) if service.binary == COMPUTE}
        nodes = [node for node in EVERY_NODE.read(alias) if node.host in by_host]
        counted = _counts() if counts else {}
        hosted = _servers() if servers else {}
        return [
            Hypervisor(
                cell, node, by_host[node.host],
                running=sum(counted.get(key, (0, 0))[0] for key in _keys(node)),
                busy=sum(counted.get(key, (0, 0))[1] for key in _keys(node)),
                servers=[server for key in _keys(node) for server in hosted.get(key, [])],
            )
            for node in nodes
        ]  # fmt: skip

    return _everywhere(read)


def hosts_of(cells: list[Cell]) -> list[str]:
    """Return the compute hosts of cells that are down, from the global database."""
    return list(HostMapping.objects.filter(cell__in=cells).order_by("host").values_list("host", flat=True))


def _everywhere(read: Callable[[Cell], list[T]]) -> CellResults[T]:
    cells = cell_records.every()
    gathered = scatter.gather(cells, read)
    found = [one for cell in cells for one in gathered.answers.get(cell.id, [])]
    return CellResults(found, [cell for cell in cells if cell.id in gathered.down])


def _keys(node: ComputeNode) -> tuple[tuple[str, str], tuple[str, str]]:
    """A host may have several nodes; a server that names no node counts for each node of its host."""
    return (node.host, node.hypervisor_hostname), (node.host, "")


def _living() -> Any:
    return Instance.objects.living().exclude(host="")


def _counts() -> dict[tuple[str, str], tuple[int, int]]:
    rows = _living().values_list("host", "node").annotate(
        running=Count("id"), busy=Count("id", filter=Q(task_state__isnull=False))
    )
    return {(host, node): (running, busy) for host, node, running, busy in rows.order_by()}


def _servers() -> dict[tuple[str, str], list[dict[str, str]]]:
    hosted: dict[tuple[str, str], list[dict[str, str]]] = {}
    for server in _living().only("id", "uuid", "host", "node").order_by("id"):
        names = {"name": server.instance_name, "uuid": server.uuid}
        hosted.setdefault((server.host, server.node), []).append(names)
    return hosted
