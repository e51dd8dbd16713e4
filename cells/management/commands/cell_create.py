"""manage.py cell_create: register a cell."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django.core.management.base import BaseCommand, CommandParser
from django.db import IntegrityError

from cells.management import options as shared
from cells.models import CELL0, Cell


class Command(BaseCommand):
    """Writes the Cell row. `cell_migrate` creates the tables."""

    help = (
        "Register a cell: its database and its broker. Creates no tables: run cell_migrate afterwards. "
        f"cell0, which keeps servers that never got a host, has the UUID {CELL0} and no broker. "
        "Exit codes: 0 done; 1 something is missing or not valid; 2 name, UUID, URL or database is taken."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. URLs may come from the environment: all users of the machine can see arguments."""
        parser.add_argument("--name", default="", help="Name of the cell.")
        shared.add_uuid(parser, "UUID of the cell; default: a new one.")
        parser.add_argument("--database-url", default="-", help="sqlite:////path or postgresql://…; default: the value "
                            f"of {shared.DATABASE_VARIABLE}.")  # fmt: skip
        parser.add_argument("--broker-url", default="-", help="redis://… or amqp://…; default: the value of "
                            f"{shared.BROKER_VARIABLE}.")  # fmt: skip
        parser.add_argument("--disabled", action="store_true", help="Schedule no new servers to it yet.")
        parser.add_argument("--if-missing", action="store_true", help="When a cell with this UUID (or name) is "
                            "registered already, set its URLs.")  # fmt: skip
        parser.add_argument("--verbose", action="store_true", help="Print the new cell's UUID.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check everything, then write one row."""
        name = options["name"].strip()
        if not name or len(name) > 255:
            shared.exit_with(self, 1, "A cell needs a name of 1 to 255 characters (--name).")
        uuid = self._uuid(options["uuid"])
        found = shared.find_cell(uuid, "" if uuid else name) if options["if_missing"] else None
        cell = found or Cell(id=uuid or str(uuid4()), name=name, disabled=options["disabled"])
        if cell.is_cell0 and options["disabled"]:
            shared.exit_with(self, 1, shared.CELL0_DISABLED)
        if cell.name != name:
            shared.exit_with(self, 2, f"The cell {cell.id} is named {cell.name}, not {name}.")
        cell.database_url = shared.read_database_url(
            self, options["database_url"], cell_id=found.id if found else "", invalid=1, taken=2
        )
        cell.broker_url = shared.read_broker_url(self, options["broker_url"], cell, invalid=1)
        try:
            cell.save(force_insert=found is None)
        except IntegrityError:
            shared.exit_with(self, 2, f"The name {cell.name}, the UUID or the URL is taken already.")
        if options["verbose"]:
            self.stdout.write(cell.id)

    def _uuid(self, given: str) -> str:
        try:
            return str(UUID(given)) if given else ""
        except ValueError:
            shared.exit_with(self, 1, f"{given} is not a UUID.")
