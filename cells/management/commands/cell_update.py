"""manage.py cell_update: change a cell's name or URLs, or whether it takes new servers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, IntegrityError

from cells.management import options as shared


class Command(BaseCommand):
    """Changes the Cell row. Running processes use a changed URL without a restart."""

    help = (
        "Change a cell. Running processes use a changed URL without a restart. Exit codes: 0 done; "
        "1 no such cell; 2 cannot be saved; 3 name, URL or database is taken; 4 --disable and --enable "
        "together; 5 cell0 cannot be disabled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. A URL of "-" is read from the environment."""
        shared.add_uuid(parser)
        parser.add_argument("--name", default="", help="The cell, by its name.")
        parser.add_argument("--new-name", default="", help="Its new name.")
        parser.add_argument("--database-url", help=f'Its new URL; "-": the value of {shared.DATABASE_VARIABLE}.')
        parser.add_argument("--broker-url", help=f'Its new URL; "-": the value of {shared.BROKER_VARIABLE}.')
        parser.add_argument("--disable", action="store_true", help="Schedule no new servers to it any more.")
        parser.add_argument("--enable", action="store_true", help="Schedule new servers to it again.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check everything, then write one row."""
        cell = shared.require_cell(self, options["uuid"], options["name"])
        if options["disable"] and options["enable"]:
            shared.exit_with(self, 4, "Give --disable or --enable, not both.")
        if options["disable"] and cell.is_cell0:
            shared.exit_with(self, 5, shared.CELL0_DISABLED)
        if options["disable"] or options["enable"]:
            cell.disabled = options["disable"]
        cell.name = options["new_name"].strip() or cell.name
        if options["database_url"] is not None:
            cell.database_url = shared.read_database_url(
                self, options["database_url"], cell_id=cell.id, invalid=2, taken=3
            )
        if options["broker_url"] is not None:
            cell.broker_url = shared.read_broker_url(self, options["broker_url"], cell, invalid=2)
        try:
            cell.save()
        except IntegrityError:
            shared.exit_with(self, 3, f"There is another cell with the name {cell.name} or this URL.")
        except DatabaseError as exc:
            shared.exit_with(self, 2, f"The cell cannot be saved: {exc}.")
