"""manage.py map_instances: map the servers of a cell that the global database does not know."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from cells import scatter
from cells.context import target_cell
from cells.management import options as shared
from cells.models import Cell, InstanceMapping
from cloud.words import counted
from compute.models import Instance
from compute.servers import mappings

BATCH = 50


class Command(BaseCommand):
    """For a cell that was restored or moved in from elsewhere."""

    help = (
        "Give every server of a cell a mapping, in batches of 50. Exit codes: 0 all are mapped; 1 more are "
        "left (--max-count was reached); 127 --max-count is not a positive number; 255 no such cell, or it "
        "is down."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of `nova-manage cell_v2 map_instances`."""
        shared.add_uuid(parser)
        shared.add_max_count(parser, "servers mapped")
        parser.add_argument(
            "--reset", action="store_true",
            help="Accepted for scripts written for nova-manage: a run always looks from the beginning.",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Map batch after batch: a run that is interrupted has lost nothing."""
        limit = shared.read_max_count(self, options["max_count"])
        cell = shared.require_cell(self, options["uuid"], code=255)
        mapped, more = 0, False
        answer = scatter.ask_one(cell, scatter.probe_tables)  # within a deadline; the mapping below has none
        if isinstance(answer, scatter.CellFailure):
            shared.exit_with(self, 255, f"The cell {cell.name} does not answer ({answer.reason}).")
        try:
            with target_cell(cell):
                mapped, more = _map(cell, limit)
        except scatter.AWAY as exc:
            why = f"The cell {cell.name} does not answer any more ({type(exc).__name__})."
            shared.exit_with(self, 255, f"{why} What was mapped until then is kept; run this again.")
        self.stdout.write(f"{counted(mapped, 'server')} mapped.")
        if more:
            shared.exit_with(self, 1, "More servers are left; run this again.")


def _map(cell: Cell, limit: int | None) -> tuple[int, bool]:
    """Map servers without a mapping; return how many, and whether more are left."""
    mapped, last = 0, 0
    while batch := list(Instance.objects.filter(pk__gt=last).order_by("pk")[:BATCH]):
        last = batch[-1].pk
        known = set(
            InstanceMapping.objects.filter(pk__in=[i.uuid for i in batch]).values_list("pk", flat=True)
        )
        missing = [instance for instance in batch if instance.uuid not in known]
        room = len(missing) if limit is None else limit - mapped
        mappings.map_rows(cell, missing[:room])
        mapped += min(room, len(missing))
        if len(missing) > room:
            return mapped, True
    return mapped, False
