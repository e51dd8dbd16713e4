"""manage.py discover_hosts: map new hosts of the cells, so that the scheduler and the API know them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import IntegrityError

from cells import scatter
from cells.management import options as shared
from cells.models import Cell, HostMapping
from compute.models import Service


class Command(BaseCommand):
    """A host announces itself in its cell; here the global side learns of it."""

    help = (
        "Map hosts that announced themselves (by a nova-compute service record) to their cell. Safe to run "
        "as often as you like. Exit codes: 0 done; 1 --strict and nothing new, a cell that did not answer, "
        "or a host that is in another cell already; 2 a host was mapped by another process: run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of `nova-manage cell_v2 discover_hosts`."""
        shared.add_uuid(parser, "Only the cell with this UUID.")
        parser.add_argument("--strict", action="store_true", help="It is an error if nothing new is found.")
        parser.add_argument(
            "--by-service", action="store_true",
            help="Accepted for scripts written for nova-manage: hosts are always found by their service.",
        )  # fmt: skip
        parser.add_argument("--verbose", action="store_true", help="Name each host found.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask all cells at once, then write the missing mappings."""
        cells = [cell for cell in shared.select_cells(self, options["uuid"]) if not cell.is_cell0]
        gathered = scatter.gather(cells, _announced)
        found, misplaced = 0, 0
        for cell in cells:
            if cell.id in gathered.down:
                self.stderr.write(f"The cell {cell.name} does not answer: {gathered.down[cell.id].reason}.")
                continue
            new, wrong = self._map(cell, gathered.answers[cell.id], options["verbose"])
            found, misplaced = found + new, misplaced + wrong
        self.stdout.write(f"{found} new host{'' if found == 1 else 's'}.")
        if gathered.down or misplaced or (options["strict"] and not found):
            shared.exit_with(self, 1, "Not every host could be mapped." if found else "No host was mapped.")

    def _map(self, cell: Cell, hosts: list[str], verbose: bool) -> tuple[int, int]:
        """Map the new hosts; return how many there are, and how many are mapped to another cell."""
        known = dict(HostMapping.objects.filter(host__in=hosts).values_list("host", "cell_id"))
        new, misplaced = 0, 0
        for host in hosts:
            if host not in known:
                self._write(cell, host, verbose)
                new += 1
            elif known[host] != cell.id:
                self.stderr.write(f"The host {host} of {cell.name} is mapped to the cell {known[host]}.")
                misplaced += 1
        return new, misplaced

    def _write(self, cell: Cell, host: str, verbose: bool) -> None:
        try:
            HostMapping.objects.create(host=host, cell=cell)
        except IntegrityError:
            shared.exit_with(self, 2, f"Another process mapped the host {host} meanwhile; run this again.")
        if verbose:
            self.stdout.write(f"{host} is in {cell.name}")


def _announced(_: Cell) -> list[str]:
    return list(Service.objects.computes().order_by("host").values_list("host", flat=True))
