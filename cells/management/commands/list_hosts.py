"""manage.py list_hosts: list the hosts and their cells."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from cells.management import options as shared
from cells.models import HostMapping


class Command(BaseCommand):
    """Reads the global database only."""

    help = "List the hosts that are mapped to a cell. Exit codes: 0; 1 no such cell."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. Default: all cells."""
        shared.add_uuid(parser, "Only the cell with this UUID.")
        shared.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one row per host."""
        mappings = HostMapping.objects.select_related("cell").order_by("cell__name", "host")
        if options["uuid"]:
            mappings = mappings.filter(cell=shared.require_cell(self, options["uuid"]))
        rows = [{"cell": m.cell.name, "uuid": m.cell_id, "host": m.host} for m in mappings]
        if options["json"]:
            shared.print_json(self, rows)
        else:
            shared.print_table(self, ("cell", "uuid", "host"), rows)
