"""manage.py cell_list: list the cells and whether they answer."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Count

from cells import probes
from cells.management import options as shared
from cells.models import Cell, masked


class Command(BaseCommand):
    """Lists every cell; one that is down is listed with the reason."""

    help = (
        "List the cells, with the time in which the database and the broker of each answer, or the reason why they do "
        "not. Passwords in URLs are masked unless --verbose is given."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--json` and `--verbose`, which shows secrets."""
        shared.add_json(parser)
        parser.add_argument("--verbose", action="store_true", help="Show URLs with their passwords.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one row per cell."""
        show = str if options["verbose"] else masked
        cells = list(Cell.objects.annotate(known_hosts=Count("hosts")).order_by("name"))
        probed = probes.ask(cells)
        rows = [
            {
                "name": cell.name, "uuid": cell.id, "database": probed[cell.id].database.text,
                "broker": probed[cell.id].broker.text, "disabled": cell.disabled, "hosts": cell.known_hosts,
                "database_url": show(cell.database_url), "broker_url": show(cell.broker_url),
            }
            for cell in cells
        ]  # fmt: skip
        if not options["json"]:
            shared.print_table(self, list(rows[0]) if rows else ("name",), rows)
            return
        shared.print_json(self, [row | {"database_trouble": probed[str(row["uuid"])].database.trouble} for row in rows])
