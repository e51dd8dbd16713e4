"""manage.py queue_depths: how many messages wait in each queue of each broker."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from cells import brokers, scatter
from cells.management import options as shared
from cells.models import Cell, HostMapping
from compute.models import Service
from compute.operations import dispatch

GLOBAL = "global"


class Command(BaseCommand):
    """Prints the depths; a broker or a cell that does not answer is named on standard error."""

    help = (
        "Messages waiting in every queue: the scheduler's on the global broker; in each cell the conductor's "
        "and two of each host (compute.<host> for requests, compute-ops.<host> for work already begun). "
        "The depth is null where the broker does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--json`, which prints {cell: {queue: depth}}."""
        shared.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the global broker first, then the cells by name."""
        found = {GLOBAL: self._depths(GLOBAL, settings.BROKER_URL, [dispatch.SCHEDULER_QUEUE])}
        cells = [cell for cell in Cell.objects.order_by("name") if not cell.is_cell0]
        hosts = self._hosts(cells)
        for cell in cells:
            found[cell.name] = self._depths(cell.name, cell.broker_url, _queues(hosts[cell.id]))
        if options["json"]:
            shared.print_json(self, found)
            return
        rows = [
            {"cell": name, "queue": queue, "waiting": "?" if depth is None else depth}
            for name, queues in found.items()
            for queue, depth in queues.items()
        ]
        shared.print_table(self, ("cell", "queue", "waiting"), rows)

    def _hosts(self, cells: list[Cell]) -> dict[str, set[str]]:
        """Return each cell's mapped hosts, and those that have a service record and are not mapped yet."""
        hosts: dict[str, set[str]] = {cell.id: set() for cell in cells}
        for host, cell_id in HostMapping.objects.values_list("host", "cell_id"):
            hosts.setdefault(cell_id, set()).add(host)
        gathered = scatter.gather(cells, _announced)
        for cell in cells:
            hosts[cell.id].update(gathered.answers.get(cell.id, ()))
            if cell.id in gathered.down:
                reason = gathered.down[cell.id].reason
                self.stderr.write(f"{cell.name} does not answer ({reason}): only mapped hosts are listed.")
        return hosts

    def _depths(self, name: str, url: str, queues: list[str]) -> dict[str, int | None]:
        if not url:
            self.stderr.write(f"{name} has no broker.")
            return dict.fromkeys(queues)
        try:
            return dict(brokers.depths(url, queues))
        except Exception as exc:  # each kombu transport raises its own kinds; all mean: not reached
            self.stderr.write(f"The broker of {name} does not answer ({type(exc).__name__}).")
            return dict.fromkeys(queues)


def _announced(_: Cell) -> list[str]:
    return list(Service.objects.computes().values_list("host", flat=True))


def _queues(hosts: set[str]) -> list[str]:
    names = [dispatch.CONDUCTOR_QUEUE]
    for host in sorted(hosts):
        names += [dispatch.host_queue(host), dispatch.host_queue(host, dispatch.OPS)]
    return names
