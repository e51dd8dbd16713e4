"""manage.py cell_migrate: migrate the databases of cells."""

from __future__ import annotations

import os
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import InconsistentMigrationHistory

from cells.context import register
from cells.management import options as shared
from cells.models import Cell
from cells.scatter import AWAY
from cells.sqlite.base import create_file

FAILURES = (*AWAY, DatabaseError, InconsistentMigrationHistory, CommandError)


class Command(BaseCommand):
    """Runs `migrate` on each cell; a cell that is down does not stop the others. Creates a new SQLite cell's file."""

    help = (
        "Run migrate on every cell's database, or on one. When one fails, the others are migrated "
        "all the same. Creates the SQLite file of a new cell; of a cell with hosts or servers only with --new-file. "
        "Exit codes: 0 all done; 1 no such cell, or at least one failed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. Default: all cells."""
        shared.add_uuid(parser, "Only the cell with this UUID.")
        parser.add_argument("--name", default="", help="Only the cell with this name.")
        parser.add_argument(
            "--new-file", action="store_true",
            help="Create a missing SQLite file also for a cell that has hosts or servers: its records are lost.",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate one cell after the other."""
        cells = shared.select_cells(self, options["uuid"], options["name"])
        rows = [{"cell": cell.name, "result": self._migrate(cell, options)} for cell in cells]
        shared.print_table(self, ("cell", "result"), rows)
        failed = [row["cell"] for row in rows if row["result"] != "up to date"]
        if failed:
            shared.exit_with(self, 1, f"Not migrated: {', '.join(failed)}.")

    def _migrate(self, cell: Cell, options: dict[str, Any]) -> str:
        try:
            alias = register(cell)
            _make_file(cell, connections[alias], anew=options["new_file"])
            quieter = max(0, options["verbosity"] - 1)
            call_command("migrate", database=alias, interactive=False, verbosity=quieter, stdout=self.stdout)
            connections[alias].close()
        except FAILURES as exc:
            text = str(exc).strip()
            return f"failed: {text.splitlines()[0] if text else type(exc).__name__}"
        return "up to date"


def _make_file(cell: Cell, connection: BaseDatabaseWrapper, *, anew: bool) -> None:
    """Create the file of a new cell. A cell with hosts or servers had one, which the operator must restore."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite" or os.path.exists(name):
        return
    if not anew and (cell.hosts.exists() or cell.servers.exclude(queued_for_delete=True).exists()):
        raise CommandError(f"{name} is missing, and the cell has hosts or servers: restore it (or --new-file)")
    create_file(name)
