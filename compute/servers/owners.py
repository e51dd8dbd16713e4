"""Which cells a list has to ask, from the mappings in the global database.

Most lists are a page of the newest living servers of a project. The mappings have what decides about such a page
(project, time of creation, id), so one query names the cells that have its servers. Any other list asks the cells in
which the project has servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from cells.models import Cell, InstanceMapping
from compute.servers import rows as servers_rows

Place = tuple[datetime, str]  # created_at and id of a server


def cells_with_servers(cells: Iterable[Cell], project_id: str) -> list[Cell]:
    """Return the cells that have, or had, servers of a project; "": of any. One query."""
    mine = {"project_id": project_id} if project_id else {}
    owned = Exists(InstanceMapping.objects.filter(cell=OuterRef("pk"), **mine))
    ids = set(Cell.objects.filter(owned).values_list("pk", flat=True))
    return [cell for cell in cells if cell.pk in ids]


@dataclass(slots=True)
class NewestFirst:
    """The living servers of a project ("": of all) after a place, newest first, as the mappings have them.

    A mapping may be behind its cell: the server has been deleted there. The rows of the cells decide what is listed,
    the mappings only which cells are asked.
    """

    project_id: str
    last: Place | None = None  # the last one read; at first the marker
    are_all_read: bool = False

    def next(self, size: int, down: Iterable[str]) -> dict[str, int]:
        """Read the next `size` mappings of servers outside the cells that are down; return how many each cell has.

        Two queries: where these mappings end, and their number by cell. Servers in no cell yet are not among them.
        """
        following = self._following(down)
        ordered = following.order_by("-created_at", "server_id").values_list("created_at", "server_id")
        end = next(iter(ordered[size - 1 : size]), None)
        self.are_all_read = end is None
        return self._count(following, end)

    def up_to(self, end: Place, down: Iterable[str]) -> dict[str, int]:
        """As `next`, up to a place. One query."""
        return self._count(self._following(down), end)

    def _following(self, down: Iterable[str]) -> QuerySet[InstanceMapping]:
        wanted = InstanceMapping.objects.filter(is_deleted=False, cell__isnull=False).exclude(cell__in=list(down))
        if self.project_id:
            wanted = wanted.filter(project_id=self.project_id)
        if self.last is not None:
            created_at, server_id = self.last
            wanted = wanted.filter(created_at__lte=created_at)  # where the index begins
            wanted = wanted.filter(Q(created_at__lt=created_at) | Q(server_id__gt=server_id))
        return wanted

    def _count(self, wanted: QuerySet[InstanceMapping], end: Place | None) -> dict[str, int]:
        self.last = end
        if end is not None:
            created_at, server_id = end
            wanted = wanted.filter(created_at__gte=created_at)
            wanted = wanted.filter(Q(created_at__gt=created_at) | Q(server_id__lte=server_id))
        return dict(wanted.order_by().values_list("cell_id").annotate(Count("server_id")))

    def reach(self, created_at: str, server_id: str) -> bool:
        """Return whether the mappings read so far reach to a server, whose time is given as text.

        Then no cell that they do not name has one before it.
        """
        if self.last is None or self.are_all_read:
            return self.are_all_read
        last = servers_rows.moment_text(self.last[0])
        return created_at > last or (created_at == last and server_id <= self.last[1])
