"""manage.py host_delete: remove the mapping of a host to its cell."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from cells import scatter
from cells.management import options as shared
from cells.models import Cell, HostMapping
from cloud.words import counted
from compute.models import Instance


class Command(BaseCommand):
    """Removes the mapping; the host's own records stay in its cell."""

    help = (
        "Forget which cell a host is in. A host that still runs is found again by discover_hosts. "
        "Exit codes: 0 done; 1 no such cell; 2 no such host; 3 the host is not in that cell; 4 it has "
        "servers; 5 its cell does not answer, so whether it has is not known."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--uuid` and `--host`. The cell is required, so that a mistyped host name does no harm."""
        shared.add_uuid(parser)
        parser.add_argument("--host", default="", help="The host.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Refuse with an exit code, or delete one row."""
        host = options["host"]
        cell = shared.require_cell(self, options["uuid"])
        mapping = HostMapping.objects.filter(host=host).first()
        if mapping is None:
            shared.exit_with(self, 2, f"There is no host {host or '(give --host)'}.")
        if mapping.cell_id != cell.id:
            shared.exit_with(self, 3, f"The host {host} is not in the cell {cell.name}.")

        def servers(_: Cell) -> int:
            return Instance.objects.living(host=host).count()

        count = scatter.ask_one(cell, servers)
        if isinstance(count, scatter.CellFailure):
            shared.exit_with(self, 5, f"{cell.name} does not answer ({count.reason}); {host} may have servers.")
        if count:
            shared.exit_with(self, 4, f"The host {host} has {counted(count, 'server')}.")
        mapping.delete()
        self.stdout.write(f"The host {host} is forgotten.")
