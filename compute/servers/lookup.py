"""From a server's id to its record: the mapping, the cell, the row, and whether the caller may see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Exists

from cells import cell_records, scatter
from cells.compiled_query import CompiledQuery
from cells.context import current_alias
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.caller import Caller
from compute.errors import CellDown, ServerNotFound, ServerNotReady
from compute.models import Instance
from compute.servers import create

T = TypeVar("T")
_MAPPING = ("server_id", "cell_id", "project_id", "user_id", "queued_for_delete", "created_at", "is_deleted")
_CELL = tuple(f"cell__{name}" for name in cell_records.COLUMNS)
_BY_ID = CompiledQuery(
    lambda server_id: InstanceMapping.objects.filter(pk=server_id).values_list(
        Exists(BuildRequest.objects.filter(pk=server_id)), *_MAPPING, *_CELL
    ),
    "server_id",
)


@dataclass(slots=True)
class FoundServer(Generic[T]):
    """Where a server is, and what was read of it.

    `request` is set while it has not been placed; `read` is then None, as it is when the cell is down (`down`).
    """

    mapping: InstanceMapping
    read: T | None = None
    request: BuildRequest | None = None
    down: scatter.CellFailure | None = None


def mapping_of(server_id: str, caller: Caller) -> InstanceMapping:
    """Return the server's mapping, with its cell. Raises ServerNotFound, also for servers of other projects."""
    return _mapping_and_request(server_id, caller)[0]


def _mapping_and_request(server_id: str, caller: Caller) -> tuple[InstanceMapping, bool]:
    """Return the mapping, and whether there is a build request. One query."""
    rows = _BY_ID.rows("default", server_id=server_id)
    if not rows:
        raise ServerNotFound(server_id)
    has_request, *values = rows[0]
    mapping = InstanceMapping.from_db("default", _MAPPING, values[: len(_MAPPING)])
    if not (caller.is_admin or mapping.project_id == caller.project_id):
        raise ServerNotFound(server_id)
    mapping.cell = cell_records.record(values[len(_MAPPING) :]) if mapping.cell_id else None
    return mapping, has_request


def find(server_id: str, caller: Caller, read: Callable[[str], T | None]) -> FoundServer[T]:
    """Return the server as far as it can be known now. Raises ServerNotFound.

    `read` is called with the id while the server's cell is targeted; None: the cell has no such living server.
    """
    mapping, has_request = _mapping_and_request(server_id, caller)
    if mapping.cell is None or has_request:
        return _unplaced(mapping, BuildRequest.objects.filter(pk=server_id).first(), read)
    return _in_cell(mapping, mapping.cell, read)


def readable(server_id: str, caller: Caller) -> Instance:
    """Return the server's row for reading, also of a server in no cell yet. Raises ServerNotFound, CellDown."""
    found = find(server_id, caller, _instance)
    if found.request is not None:
        return create.unplaced(found.request)
    if found.read is None:
        raise CellDown(found.mapping.cell.name if found.mapping.cell else "")
    return found.read


@contextmanager
def server(server_id: str, caller: Caller) -> Iterator[Instance]:
    """Yield the server's row for writing, with its cell targeted.

    Raises ServerNotFound, ServerNotReady (not placed yet), CellDown.
    """
    found = find(server_id, caller, _is_living)
    if found.request is not None and found.mapping.cell is None:
        raise ServerNotReady(server_id)
    cell = found.mapping.cell
    if cell is None:
        raise ServerNotFound(server_id)
    if found.down is not None:
        raise CellDown(cell.name)
    with targeted_cell(cell):
        instance = _instance(server_id)
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


def _instance(server_id: str) -> Instance | None:
    return Instance.objects.living(uuid=server_id).first()


_LIVING = CompiledQuery(lambda server_id: Instance.objects.living(uuid=server_id).values_list("pk"), "server_id")


def _is_living(server_id: str) -> bool | None:
    """Return True; None when the targeted cell has no such living server."""
    return bool(_LIVING.rows(current_alias(), server_id=server_id)) or None


def _unplaced(
    mapping: InstanceMapping, request: BuildRequest | None, read: Callable[[str], T | None]
) -> FoundServer[T]:
    """A server between acceptance and its cell. If the request is gone, it has just been placed or deleted."""
    if request is None or request.delete_requested:
        fresh = InstanceMapping.objects.select_related("cell").filter(pk=mapping.pk).first()
        if fresh is None or fresh.cell is None:
            raise ServerNotFound(mapping.server_id)
        return _in_cell(fresh, fresh.cell, read)
    if mapping.cell is not None:
        placed = _in_cell_or_none(mapping, mapping.cell, read)
        if placed is not None:
            return placed
    return FoundServer(mapping, request=request)


def _in_cell_or_none(
    mapping: InstanceMapping, cell: Cell, read: Callable[[str], T | None]
) -> FoundServer[T] | None:
    try:
        found = _in_cell(mapping, cell, read)
    except ServerNotFound:
        return None
    return None if found.down else found


def _in_cell(mapping: InstanceMapping, cell: Cell, read: Callable[[str], T | None]) -> FoundServer[T]:
    answer = scatter.ask_one(cell, lambda _: read(mapping.server_id))
    if isinstance(answer, scatter.CellFailure):
        if mapping.queued_for_delete:
            raise ServerNotFound(mapping.server_id)
        return FoundServer(mapping, down=answer)
    if answer is None:
        raise ServerNotFound(mapping.server_id)
    return FoundServer(mapping, answer)
