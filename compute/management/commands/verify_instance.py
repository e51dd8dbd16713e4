"""manage.py verify_instance: check whether a server is where the global database says it is."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from cells import scatter
from cells.management import options as shared
from cells.models import BuildRequest, Cell, InstanceMapping
from compute.models import Instance


class Command(BaseCommand):
    """Looks and changes nothing."""

    help = (
        "Print in which cell a server is. Exit codes: 0 mapped (also when its cell does not answer); "
        "1 no mapping; 2 not in a cell yet; 3 deleted in its cell, but still mapped; 4 not in its cell any "
        "more, but mapped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--uuid` and `--quiet`."""
        parser.add_argument("--uuid", "--server", dest="server", default="", help="UUID of the server.")
        parser.add_argument("--quiet", action="store_true", help="Print nothing; the exit code says it.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read the mapping first, then the cell."""
        code, sentence = _verdict(options["server"].lower())
        if code and options["quiet"]:
            raise SystemExit(code)
        if code:
            shared.exit_with(self, code, sentence)
        if not options["quiet"]:
            self.stdout.write(sentence)


def _verdict(server: str) -> tuple[int, str]:
    mapping = InstanceMapping.objects.select_related("cell").filter(pk=server).first()
    if mapping is None:
        return 1, f"The server {server} is not mapped."
    if mapping.cell is None:
        return 2, f"The server {server} is not in a cell yet."

    def deleted(_: Cell) -> bool | None:
        return Instance.objects.filter(uuid=server).values_list("deleted", flat=True).first()

    where = f"{mapping.cell.name} ({mapping.cell_id})"
    found = scatter.ask_one(mapping.cell, deleted)
    if isinstance(found, scatter.CellFailure):
        going = " Its delete was asked for." if mapping.queued_for_delete else ""
        return 0, f"{server} is mapped to {where}, which does not answer ({found.reason}): not verified.{going}"
    if found is None and BuildRequest.objects.filter(pk=server).exists():
        return 0, f"The server {server} is on its way into {where}."
    if found is None:
        return 4, f"The server {server} is not in {where} any more, but still mapped there."
    if found:
        return 3, f"The server {server} is deleted in {where}, but still mapped there."
    return 0, f"The server {server} is in {where}."
