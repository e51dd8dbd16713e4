"""manage.py service_list: every service of every cell, and its heartbeat."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from cells import scatter
from cells.management import options as shared
from cells.models import Cell
from compute.models import Service
from compute.placement import aggregates
from compute.placement.aggregates import ByHost

COLUMNS = ("binary", "host", "cell", "wanted", "state", "age", "version", "incarnation")


class Command(BaseCommand):
    """Asks all cells at once; one that is down is named on stderr."""

    help = "List the services of all cells with their heartbeats; cells that do not answer are on stderr."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--json`, which prints a list of services; `age` is in seconds."""
        shared.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the services by cell, binary, host."""
        cells = list(Cell.objects.order_by("name"))
        gathered, known = scatter.gather(cells, _services), aggregates.by_host()
        rows = []
        for cell in cells:
            if cell.id in gathered.down:
                self.stderr.write(f"The cell {cell.name} does not answer: {gathered.down[cell.id].reason}.")
            rows += [_row(cell, service, known) for service in gathered.answers.get(cell.id, ())]
        if options["json"]:
            shared.print_json(self, rows)
        else:
            shared.print_table(self, COLUMNS, rows)


def _services(_: Cell) -> list[Service]:
    return list(Service.objects.order_by("binary", "host"))


def _row(cell: Cell, service: Service, known: ByHost) -> dict[str, Any]:
    seen = service.last_seen_up
    return {
        "binary": service.binary,
        "host": service.host,
        "cell": cell.name,
        "zone": aggregates.zone_of(service, known),
        "wanted": "disabled" if service.disabled else "enabled",
        "reason": service.disabled_reason,
        "state": "up" if service.is_up else "down",
        "forced_down": service.forced_down,
        "age": round(service.silent_for.total_seconds(), 1) if seen else None,
        "version": service.version,
        "incarnation": service.incarnation or None,
    }
