"""manage.py cell_delete: remove a cell from the global database."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import ProtectedError, Q

from cells import scatter
from cells.management import options as shared
from cells.models import Cell, InstanceMapping, RequestSpec
from cloud.words import counted
from compute.models import Instance

BATCH = 500


class Command(BaseCommand):
    """Decides by the global records, so a cell whose database is lost can be forgotten."""

    help = (
        "Forget a cell. Its database is not touched, and need not be there. --force also forgets its hosts "
        "and the records of servers deleted long ago; servers that live are never forgotten. Exit codes: "
        "0 done; 1 no such cell; 2 it has hosts; 3 it has servers; 4 it has records of deleted servers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--uuid` and `--force`."""
        shared.add_uuid(parser)
        parser.add_argument("--force", action="store_true", help="Forget hosts and deleted servers, too.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Refuse with an exit code, or delete the cell in one transaction."""
        cell = shared.require_cell(self, options["uuid"])
        if not options["force"] and cell.hosts.exists():
            shared.exit_with(self, 2, f"The cell {cell.name} has hosts ({_names(cell)}); use --force.")
        living = cell.servers.filter(Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True)).count()
        if living:
            has = counted(living, "server")
            advice = f"Delete {'it' if living == 1 else 'them'} first; that is accepted also while the cell is down."
            shared.exit_with(self, 3, f"The cell {cell.name} has {has}. {advice}")
        self._look_inside(cell)
        old = cell.servers.count()
        if old and not options["force"]:
            shared.exit_with(self, 4, f"The cell {cell.name} has records of {old} deleted servers; use --force.")
        try:
            _forget(cell)
        except ProtectedError:
            shared.exit_with(self, 3, f"The cell {cell.name} got a new server or host meanwhile.")
        self.stdout.write(f"The cell {cell.name} is forgotten, with {old} records of deleted servers.")

    def _look_inside(self, cell: Cell) -> None:
        """Refuse while the cell has servers whose delete was requested and is not carried out."""
        if not cell.servers.exists():
            return

        def undead(_: Cell) -> int:
            return Instance.objects.living().count()

        found = scatter.ask_one(cell, undead)
        if isinstance(found, scatter.CellFailure):
            self.stderr.write(
                f"The cell does not answer ({found.reason}): the global records say that every server's "
                "delete was asked for; whether all were carried out could not be checked."
            )
        elif found:
            shared.exit_with(self, 3, f"The cell {cell.name} still has {counted(found, 'server')} being deleted.")


def _names(cell: Cell) -> str:
    names = list(cell.hosts.order_by("host").values_list("host", flat=True)[:6])
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _forget(cell: Cell) -> None:
    """Delete all in one transaction. A server placed there meanwhile makes the last delete fail (PROTECT)."""
    with transaction.atomic(using="default"):
        gone = cell.servers.filter(queued_for_delete=True)
        while ids := list(gone.values_list("pk", flat=True)[:BATCH]):
            RequestSpec.objects.filter(pk__in=ids).delete()
            InstanceMapping.objects.filter(pk__in=ids).delete()
        cell.hosts.all().delete()
        cell.delete()
