"""manage.py cell_list: the cells that are known."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Count

from cells.management.tables import add_json, print_json, print_table
from cells.models import Cell, masked


class Command(BaseCommand):
    """Reads the global database only, so it works whatever cell is down."""

    help = "List the cells. Passwords in URLs are masked unless --verbose is given."

    def add_arguments(self, parser: CommandParser) -> None:
        """`--verbose` shows secrets."""
        add_json(parser)
        parser.add_argument("--verbose", action="store_true", help="Show URLs with their passwords.")

    def handle(self, *args: Any, **options: Any) -> None:
        """One row per cell."""
        show = str if options["verbose"] else masked
        rows = [
            {
                "name": cell.name, "uuid": cell.id, "database_url": show(cell.database_url),
                "broker_url": show(cell.broker_url), "disabled": cell.disabled, "hosts": cell.known_hosts,
            }
            for cell in Cell.objects.annotate(known_hosts=Count("hosts")).order_by("name")
        ]  # fmt: skip
        if options["json"]:
            print_json(self, rows)
        else:
            print_table(self, ("name", "uuid", "database_url", "broker_url", "disabled", "hosts"), rows)
