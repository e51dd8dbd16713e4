"""From a server's id to its record: the mapping, the cell, the row, and whether the caller may see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from cells import scatter
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.caller import Caller
from compute.errors import CellDown, ServerNotFound, ServerNotReady
from compute.models import Instance
from compute.servers import create

T = TypeVar("T")


@dataclass(slots=True)
class FoundServer:
    """Where a server is. `instance` is None when its cell is down; `request` is set while it has not been placed."""

    mapping: InstanceMapping
    instance: Instance | None = None
    request: BuildRequest | None = None
    down: scatter.CellFailure | None = None


def mapping_of(server_id: str, caller: Caller) -> InstanceMapping:
    """Return the server's mapping. Raises ServerNotFound, also for servers of other projects."""
    mapping = InstanceMapping.objects.select_related("cell").filter(pk=server_id).first()
    if mapping is None or not (caller.is_admin or mapping.project_id == caller.project_id):
        raise ServerNotFound(server_id)
    return mapping


def find(server_id: str, caller: Caller) -> FoundServer:
    """Return the server as far as it can be known now. Raises ServerNotFound."""
    mapping = mapping_of(server_id, caller)
    request = BuildRequest.objects.filter(pk=server_id).first()
    if mapping.cell is None or request is not None:
        return _unplaced(mapping, request)
    return _in_cell(mapping, mapping.cell)


def readable(server_id: str, caller: Caller) -> Instance:
    """Return the server's row for reading, also of a server in no cell yet. Raises ServerNotFound, CellDown."""
    found = find(server_id, caller)
    if found.instance is None:
        raise CellDown(found.mapping.cell.name if found.mapping.cell else "")
    return found.instance


@contextmanager
def server(server_id: str, caller: Caller) -> Iterator[Instance]:
    """Yield the server's row for writing, with its cell targeted.

    Raises ServerNotFound, ServerNotReady (not placed yet), CellDown.
    """
    found = find(server_id, caller)
    if found.request is not None and found.mapping.cell is None:
        raise ServerNotReady(server_id)
    cell = found.mapping.cell
    if cell is None:
        raise ServerNotFound(server_id)
    if found.down is not None:
        raise CellDown(cell.name)
    with targeted_cell(cell):
        instance = Instance.objects.living(uuid=server_id).first()
        if instance is None:
            raise ServerNotReady(server_id) if found.request else ServerNotFound(server_id)
        yield instance


@contextmanager
def targeted_cell(cell: Cell) -> Iterator[None]:
    """Target a cell that answered just now, for writing. Raises CellDown when it goes away meanwhile."""
    try:
        with scatter.target_for_write(cell):
            yield
    except scatter.DATABASE_AWAY as exc:
        raise CellDown(cell.name) from exc


def ask(cell: Cell, read: Callable[[], T]) -> T:
    """Read from a cell within the deadline for cells (CELL_TIMEOUT). Raises CellDown."""
    answer = scatter.ask_one(cell, lambda _: read())
    if isinstance(answer, scatter.CellFailure):
        raise CellDown(cell.name)
    return answer


def _unplaced(mapping: InstanceMapping, request: BuildRequest | None) -> FoundServer:
    """A server between acceptance and its cell. If the request is gone, it has just been placed or deleted."""
    if request is None or request.delete_requested:
        fresh = InstanceMapping.objects.select_related("cell").filter(pk=mapping.pk).first()
        if fresh is None or fresh.cell is None:
            raise ServerNotFound(mapping.server_id)
        return _in_cell(fresh, fresh.cell)
    if mapping.cell is not None:
        placed = _in_cell_or_none(mapping, mapping.cell)
        if placed is not None:
            return placed
    return FoundServer(mapping, create.unplaced(request), request)


def _in_cell_or_none(mapping: InstanceMapping, cell: Cell) -> FoundServer | None:
    try:
        found = _in_cell(mapping, cell)
    except ServerNotFound:
        return None
    return None if found.down else found


def _in_cell(mapping: InstanceMapping, cell: Cell) -> FoundServer:
    def read(_: Cell) -> Instance | None:
        return Instance.objects.living(uuid=mapping.server_id).first()

    answer = scatter.ask_one(cell, read)
    if isinstance(answer, scatter.CellFailure):
        if mapping.queued_for_delete:
            raise ServerNotFound(mapping.server_id)
        return FoundServer(mapping, down=answer)
    if answer is None:
        raise ServerNotFound(mapping.server_id)
    return FoundServer(mapping, answer)
