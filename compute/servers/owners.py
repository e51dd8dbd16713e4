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

from django.db.models import Exists, OuterRef, Q

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
    _size: int = 0

    def next(self, size: int) -> Counter[str]:
        """Read the next `size` mappings, then twice as many each time; return how many each cell has of them.

        One query. A server in no cell yet is not counted.
        """
        self._size = 2 * self._size or size
        wanted = InstanceMapping.objects.filter(is_deleted=False)
        if self.project_id:
            wanted = wanted.filter(project_id=self.project_id)
        if self.last is not None:
            created_at, server_id = self.last
            wanted = wanted.filter(created_at__lte=created_at)  # where the index begins
            wanted = wanted.filter(Q(created_at__lt=created_at) | Q(server_id__gt=server_id))
        ordered = wanted.order_by("-created_at", "server_id")
        found = list(ordered.values_list("cell_id", "created_at", "server_id")[: self._size])
        self.are_all_read = len(found) < self._size
        if found:
            self.last = found[-1][1:]
        return Counter(cell_id for cell_id, _, _ in found if cell_id is not None)

    def reach(self, created_at: str, server_id: str) -> bool:
        """Return whether the mappings read so far reach to a server, whose time is given as text.

        Then no cell that they do not name has one before it.
        """
        if self.last is None or self.are_all_read:
            return self.are_all_read
        last = servers_rows.moment_text(self.last[0])
        return created_at > last or (created_at == last and server_id <= self.last[1])
