"""manage.py operations: open steps of all cells, the oldest first; `retry` and `give-up` of one.

Exit codes: 0 done; 1 refused, or give-up without --yes: nothing was changed; 2 wrong usage; 3 a cell does not answer
(of a list: what the others have is printed).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Q

from cells import scatter
from cells.management import options as shared
from cells.models import Cell
from cloud import arguments
from compute.models import Step
from compute.operations import repair
from compute.operations.repair import OpenStep, RepairRefused

REFUSED, SILENT = 1, 3
COLUMNS = ("step", "server", "operation", "name", "host", "state", "since", "tries", "next try", "details")
CODES = " ".join((__doc__ or "").split("\n\n", 1)[1].split())


class Command(BaseCommand):
    """Lists by default; the verbs take a STEP as the list names it, CELL:NUMBER."""

    help = (
        "List the open steps of all cells, the oldest first: what is in progress, what waits and for what. "
        f"Verbs: retry STEP, give-up STEP. {CODES}"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the list, then the two verbs."""
        parser.add_argument("--cell", default="", help="Only of this cell, by name or UUID.")
        parser.add_argument("--server", default="", help="Only of this server, by UUID.")
        parser.add_argument(
            "--stuck", nargs="?", type=arguments.seconds, const=repair.STUCK_AFTER, metavar="SECONDS",
            help="Only those open for longer (default: 300 s) with no deadline before them, and those whose recovery "
            "failed.",
        )  # fmt: skip
        parser.add_argument("--limit", type=arguments.count_to_1000, default=100,
                            help="Steps on a page, at most 1000; default: 100.")  # fmt: skip
        parser.add_argument("--marker", default="", help="Begin after this step, the last one of the page before.")
        shared.add_json(parser)
        verbs = parser.add_subparsers(dest="verb", metavar="VERB")
        retry = verbs.add_parser("retry", help="Try it again now.")
        give_up = verbs.add_parser("give-up", help="End it as failed: its action is undone, or ends with an error.")
        for verb in (retry, give_up):
            verb.add_argument("step", metavar="STEP", help="CELL:NUMBER, as in the list.")
        give_up.add_argument("--reason", required=True, help="Why; it is in the server's action log and fault.")
        give_up.add_argument("--yes", action="store_true", help="Do it. Without it, print what would happen.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the list or a verb; every failure ends in a sentence and an exit code."""
        if settings.ROLE == "host":
            shared.exit_with(self, REFUSED, "A host has no list of cells. Run this where the global database is.")
        if options["verb"] is None:
            self._list(options)
            return
        cell, number = self._named(options["step"])
        try:
            with scatter.target_for_write(cell):
                if options["verb"] == "retry":
                    self._retry(number)
                else:
                    self._give_up(number, options["step"], options["reason"], sure=options["yes"])
        except RepairRefused as refused:
            shared.exit_with(self, REFUSED, str(refused))
        except scatter.DATABASE_AWAY as away:
            shared.exit_with(self, SILENT, f"{cell.name} does not answer ({type(away).__name__}). Look at the list "
                             "before you repeat this: it may be done.")  # fmt: skip

    # -- the list

    def _list(self, options: dict[str, Any]) -> None:
        cells = self._cells(options["cell"])
        after = self._after(options["marker"]) if options["marker"] else None
        more = options["limit"] + 1

        def ask(cell: Cell) -> list[OpenStep]:
            begin = _begin(cell, *after) if after else None
            return repair.read(more, begin, server_id=options["server"].lower(), stuck_for=options["stuck"])

        gathered = scatter.gather(cells, ask)
        found = [(cell, one) for cell in cells for one in gathered.answers.get(cell.id, ())]
        found.sort(key=lambda pair: (pair[1].step.queued_at, pair[0].name, pair[1].step.pk))
        page = found[: options["limit"]]
        marker = _name(*page[-1]) if len(found) > len(page) else ""
        self._print(page, marker, as_json=options["json"])
        for cell in cells:
            down = gathered.down.get(cell.id)
            if down is not None:
                self.stderr.write(f"{cell.name} does not answer ({down.reason}): its steps are unknown.")
        if gathered.down:
            raise SystemExit(SILENT)

    def _print(self, page: Sequence[tuple[Cell, OpenStep]], marker: str, *, as_json: bool) -> None:
        rows = [{"step": _name(cell, one), "cell": cell.name} | repair.facts(one) for cell, one in page]
        if as_json:
            shared.print_json(self, {"operations": rows, "next_marker": marker or None})
        elif rows:
            shared.print_table(self, COLUMNS, [_shown(row) for row in rows])
        else:
            self.stdout.write("No step is open.")
        if marker and not as_json:
            self.stderr.write(f"There are more: --marker {marker}")

    def _cells(self, named: str) -> list[Cell]:
        cells = Cell.objects.order_by("name")
        found = list(cells.filter(Q(name=named) | Q(pk=named.lower())) if named else cells)
        if not found:
            shared.exit_with(self, REFUSED, f"There is no cell {named}. See: manage.py cell_list")
        return found

    def _after(self, marker: str) -> tuple[str, datetime, int]:
        """Return where the page before ended: the name of the cell, the time the step was opened, its id."""
        cell, number = self._named(marker)
        rows = Step.objects.filter(pk=number).values_list("queued_at", flat=True)
        found = scatter.ask_one(cell, lambda _: rows.first())
        if isinstance(found, scatter.CellFailure):
            shared.exit_with(self, SILENT, f"--marker: {cell.name} does not answer ({found.reason}).")
        if found is None:
            shared.exit_with(self, REFUSED, f"--marker: there is no step {marker}. Begin again without it.")
        return cell.name, found, number

    # -- the verbs

    def _retry(self, number: int) -> None:
        step = repair.find(number)
        (one,) = repair.with_services([step])
        repair.retry(step)
        where = f"host {step.host}" if step.host else "a conductor"
        there = "" if one.service == "up" else f", which is {one.service}: it is tried when that takes work"
        self.stdout.write(f"Step {step.name} of server {step.server_id} is tried again now by {where}{there}.")

    def _give_up(self, number: int, name: str, reason: str, *, sure: bool) -> None:
        step = repair.find(number)
        warning = repair.warning(step)
        if sure:
            self.stdout.write(repair.give_up(step, by=shared.operator_name(), reason=reason))
            return
        self.stdout.write(f"This would happen: {repair.outcome_of_giving_up(step)}")
        if warning:
            self.stdout.write(f"! {warning}")
        shared.exit_with(self, REFUSED, f"Nothing was changed. To do it: operations give-up {name} --reason … --yes")

    def _named(self, text: str) -> tuple[Cell, int]:
        """Return the cell and the step id of "CELL:NUMBER"; exit when there is none."""
        name, _, number = text.rpartition(":")
        if not name or not number.isdecimal() or len(number) > 18:
            shared.exit_with(self, REFUSED, f"{text!r} names no step: CELL:NUMBER, as `manage.py operations` shows it.")
        cells = self._cells(name)
        if len(cells) > 1:
            shared.exit_with(self, REFUSED, f"{len(cells)} cells are called {name}: give the UUID of one, UUID:NUMBER.")
        return cells[0], int(number)


def _begin(cell: Cell, name: str, queued_at: datetime, number: int) -> Q:
    """Return the filter for this cell's steps after the marker: pages are in the order of time, cell, id."""
    later = Q(queued_at__gt=queued_at)
    if cell.name == name:
        return later | Q(queued_at=queued_at, pk__gt=number)
    return later | Q(queued_at=queued_at) if cell.name > name else later


def _name(cell: Cell, one: OpenStep) -> str:
    return f"{cell.name}:{one.step.pk}"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the table prints it."""
    who = row["host"] or "conductor"
    due = row["next_try"]
    return row | {
        "host": who if row["service"] == "up" else f"{who} ({row['service']})", "since": f"{row['since']:%F %T}",
        "next try": f"{due:%T}" if due else None,
    }  # fmt: skip
