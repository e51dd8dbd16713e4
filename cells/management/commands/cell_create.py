"""manage.py cell_create: register a cell."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django.core.management.base import BaseCommand, CommandParser
from django.db import IntegrityError

from cells.management import arguments
from cells.models import CELL0, Cell


class Command(BaseCommand):
    """Writes the Cell row. `cell_migrate` creates the tables."""

    help = (
        "Make a cell known: its database and its broker. Creates no tables: run cell_migrate afterwards. "
        f"cell0, which keeps servers that never got a host, has the UUID {CELL0} and no broker. "
        "Exit codes: 0 done; 1 something is missing or not valid; 2 name, UUID, URL or database is taken."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. URLs may come from the environment: all users of the machine can see arguments."""
        parser.add_argument("--name", default="", help="Name of the cell.")
        arguments.add_uuid(parser, "UUID of the cell; default: a new one.")
        parser.add_argument(
            "--database-url", default="-",
            help=f"sqlite:////path or postgresql://…; default: the value of {arguments.DATABASE_VARIABLE}.",
        )  # fmt: skip
        parser.add_argument(
            "--broker-url", default="-",
            help=f"redis://… or amqp://…; default: the value of {arguments.BROKER_VARIABLE}.",
        )  # fmt: skip
        parser.add_argument("--disabled", action="store_true", help="New servers do not go there yet.")
        parser.add_argument(
            "--if-missing", action="store_true",
            help="A cell of this UUID (or name) that is there already is fine; it follows the URLs given.",
        )  # fmt: skip
        parser.add_argument("--verbose", action="store_true", help="Print the new cell's UUID.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check everything, then write one row."""
        cell = self._asked(options)
        there = self._there(cell, options) if options["if_missing"] else None
        if there is not None:
            cell = self._followed(there, cell)
        taken = arguments.same_database(cell.database_url, but=cell.id if there else "")
        if taken:
            arguments.end(self, 2, f"The database is that of {taken} already.")
        try:
            cell.save(force_insert=there is None)
        except IntegrityError:
            arguments.end(self, 2, f"The name {cell.name}, the UUID or the URL is taken already.")
        if options["verbose"]:
            self.stdout.write(cell.id)

    def _asked(self, options: dict[str, Any]) -> Cell:
        cell = Cell(
            id=self._uuid(options["uuid"]), name=options["name"].strip(), disabled=options["disabled"],
            database_url=arguments.from_environment(options["database_url"], arguments.DATABASE_VARIABLE),
            broker_url=arguments.from_environment(options["broker_url"], arguments.BROKER_VARIABLE),
        )  # fmt: skip
        if not cell.name or len(cell.name) > 255:
            arguments.end(self, 1, "A cell needs a name of 1 to 255 characters (--name).")
        fault = arguments.database_fault(cell.database_url) or _fault(cell)
        if fault:
            arguments.end(self, 1, fault)
        return cell

    def _uuid(self, given: str) -> str:
        try:
            return str(UUID(given)) if given else str(uuid4())
        except ValueError:
            arguments.end(self, 1, f"{given} is not a UUID.")

    def _there(self, asked: Cell, options: dict[str, Any]) -> Cell | None:
        """Return the cell with that UUID, or with that name when no UUID is given."""
        return arguments.find_cell(asked.id if options["uuid"] else "", "" if options["uuid"] else asked.name)

    def _followed(self, there: Cell, asked: Cell) -> Cell:
        if there.name != asked.name:
            arguments.end(self, 2, f"The cell {there.id} is named {there.name}, not {asked.name}.")
        there.database_url, there.broker_url = asked.database_url, asked.broker_url
        return there


def _fault(cell: Cell) -> str:
    if cell.is_cell0:
        return "cell0 cannot be disabled: it takes no new servers anyway." if cell.disabled else ""
    return arguments.broker_fault(cell.broker_url)
