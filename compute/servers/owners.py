"""Which cells a list has to ask, from the mappings in the global database.

Most lists are a page of the newest living servers of a project. The mappings have what decides about such a page
(project, time of creation, id), so one query names the cells that have its servers. Any other list asks the cells in
which the project has servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from cells.compiled_query import CompiledQuery
from cells.models import Cell, InstanceMapping
from compute.servers import rows as servers_rows

Place = tuple[datetime, str]  # created_at and id of a server


def cells_with_servers(cells: Iterable[Cell], project_id: str | None) -> list[Cell]:
    """Return the cells that have, or had, servers of a project; None: of any. One query."""
    mine = {} if project_id is None else {"project_id": project_id}
    owned = Exists(InstanceMapping.objects.filter(cell=OuterRef("pk"), **mine))
    ids = set(Cell.objects.filter(owned).values_list("pk", flat=True))
    return [cell for cell in cells if cell.pk in ids]


@dataclass(slots=True)
class NewestFirst:
    """The living servers of a project (None: of all) after a place, newest first, as the mappings have them.

    A mapping may be behind its cell: the server has been deleted there. The rows of the cells decide what is listed,
    the mappings only which cells are asked.
    """

    project_id: str | None
    last: Place | None = None  # the last one read; at first the marker
    are_all_read: bool = False

    def next(self, size: int, down: Iterable[str]) -> dict[str, int]:
        """Read the next `size` mappings of servers outside the cells that are down; return how many each cell has.

        One query. Servers in no cell yet are not among them.
        """
        given: dict[str, Any] = {f"down{number}": cell_id for number, cell_id in enumerate(down)}
        if self.project_id is not None:
            given["project_id"] = self.project_id
        if self.last is not None:
            given |= {"created_at": self.last[0], "server_id": self.last[1]}
        found = _following_query(frozenset(given), size).unconverted("default", **given)
        self.are_all_read = len(found) < size
        if found:
            _, created_at, server_id = found[-1]
            self.last = cast(datetime, servers_rows.moment(created_at)), server_id
        return Counter(cell_id for cell_id, _, _ in found)

    def up_to(self, end: Place, down: Iterable[str]) -> dict[str, int]:
        """As `next`, up to a place."""
        created_at, server_id = end
        wanted = _following(list(down), self.project_id, self.last)
        wanted = wanted.filter(created_at__gte=created_at)
        wanted = wanted.filter(Q(created_at__gt=created_at) | Q(server_id__lte=server_id))
        self.last = end
        return dict(wanted.values_list("cell_id").annotate(Count("server_id")))

    def reach(self, created_at: str, server_id: str) -> bool:
        """Return whether the mappings read so far reach to a server, whose time is given as text.

        Then no cell that they do not name has one before it.
        """
        if self.last is None or self.are_all_read:
            return self.are_all_read
        last = servers_rows.moment_text(self.last[0])
        return created_at > last or (created_at == last and server_id <= self.last[1])


@lru_cache(maxsize=1024)
def _following_query(given: frozenset[str], size: int) -> CompiledQuery:
    def build(
        project_id: str | None = None, created_at: Any = None, server_id: str = "", **down: str
    ) -> QuerySet[Any, Any]:
        last = (created_at, server_id) if created_at else None
        ordered = _following(list(down.values()), project_id, last).order_by("-created_at", "server_id")
        return ordered.values_list("cell_id", "created_at", "server_id")[:size]

    return CompiledQuery(build, *(given - {"created_at"}), times=("created_at",) if "created_at" in given else ())


def _following(down: list[str], project_id: str | None, last: Place | None) -> QuerySet[InstanceMapping]:
    """Return the mappings of living servers after a place."""
    wanted = InstanceMapping.objects.filter(is_deleted=False, cell__isnull=False).exclude(cell__in=down)
    if project_id is not None:
        wanted = wanted.filter(project_id=project_id)
    if last is not None:
        created_at, server_id = last
        wanted = wanted.filter(created_at__lte=created_at)  # where the index begins
        wanted = wanted.filter(Q(created_at__lt=created_at) | Q(server_id__gt=server_id))
    return wanted.order_by()
