"""manage.py cell_update: change a cell's name or URLs, or whether it takes new servers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, IntegrityError

from cells.management import arguments
from cells.models import Cell


class Command(BaseCommand):
    """Changes the Cell row. Running processes follow a changed URL by themselves."""

    help = (
        "Change a cell. Running processes follow a changed URL without a restart. Exit codes: 0 done; "
        "1 no such cell; 2 cannot be saved; 3 name, URL or database is taken; 4 --disable and --enable "
        "together; 5 cell0 cannot be disabled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. A URL of "-" is read from the environment."""
        arguments.add_uuid(parser)
        parser.add_argument("--name", default="", help="The cell, by its name.")
        parser.add_argument("--new-name", default="", help="Its new name.")
        parser.add_argument("--database-url", help=f'"-": take it from {arguments.DATABASE_VARIABLE}.')
        parser.add_argument("--broker-url", help=f'"-": take it from {arguments.BROKER_VARIABLE}.')
        parser.add_argument("--disable", action="store_true", help="New servers do not go there any more.")
        parser.add_argument("--enable", action="store_true", help="New servers may go there again.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check everything, then write one row."""
        cell = arguments.cell_or_end(self, options["uuid"], options["name"])
        if options["disable"] and options["enable"]:
            arguments.end(self, 4, "Give --disable or --enable, not both.")
        if options["disable"] and cell.is_cell0:
            arguments.end(self, 5, "cell0 cannot be disabled: it takes no new servers anyway.")
        if options["disable"] or options["enable"]:
            cell.disabled = options["disable"]
        cell.name = options["new_name"].strip() or cell.name
        self._change_urls(cell, options)
        self._save(cell)

    def _change_urls(self, cell: Cell, options: dict[str, Any]) -> None:
        """Change the URLs that are given."""
        if options["database_url"] is not None:
            url = arguments.from_environment(options["database_url"], arguments.DATABASE_VARIABLE)
            fault = arguments.database_fault(url)
            if fault:
                arguments.end(self, 2, fault)
            taken = arguments.same_database(url, but=cell.id)
            if taken:
                arguments.end(self, 3, f"The database is that of {taken} already.")
            cell.database_url = url
        if options["broker_url"] is not None:
            url = arguments.from_environment(options["broker_url"], arguments.BROKER_VARIABLE)
            fault = arguments.broker_fault(url) if url or not cell.is_cell0 else ""
            if fault:
                arguments.end(self, 2, fault)
            cell.broker_url = url

    def _save(self, cell: Cell) -> None:
        try:
            cell.save()
        except IntegrityError:
            arguments.end(self, 3, f"There is another cell with the name {cell.name} or this URL.")
        except DatabaseError as exc:
            arguments.end(self, 2, f"The cell cannot be saved: {exc}.")
