"""manage.py online_data_migrations: migrate data that older versions wrote, while the cloud runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import QuerySet

from cells import scatter
from cells.management import options as shared
from cells.models import BuildRequest, Cell, InstanceMapping
from cloud.words import counted
from compute.models import Instance
from compute.servers import deletion

BATCH = 50

Living = Callable[[list[str]], "set[str] | scatter.CellFailure"]


@dataclass(slots=True)
class Done:
    """The result of one migration. `left`: rows it may still do; `trouble`: sentences about cells left for later."""

    needed: int = 0
    completed: int = 0
    left: int = 0
    trouble: list[str] = field(default_factory=list)


class Command(BaseCommand):
    """Migrates in batches of a few conditional updates, which block no request. A later run continues."""

    help = (
        "Fill in data that older versions wrote, in batches of 50. Exit codes: 0 nothing is left; 1 more is left "
        "(--max-count was reached): run it again; 2 some could not be done, because a cell does not answer: run it "
        "again when it does; 127 --max-count is not a positive number."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--json` and the option of `nova-manage db online_data_migrations`."""
        shared.add_json(parser)
        shared.add_max_count(parser, "rows changed")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run every migration; one that cannot be done does not stop the others."""
        room = shared.read_max_count(self, options["max_count"])
        results = {}
        for name, migrate in MIGRATIONS.items():
            results[name] = done = migrate(room)
            room = None if room is None else room - done.completed
        rows = [
            {"migration": name, "needed": done.needed, "completed": done.completed, "left": done.left}
            for name, done in results.items()
        ]
        if options["json"]:
            shared.print_json(self, rows)
        else:
            shared.print_table(self, ("migration", "needed", "completed", "left"), rows)
        trouble = [sentence for done in results.values() for sentence in done.trouble]
        if trouble:
            shared.exit_with(self, 2, "\n".join([*trouble, "Run this again when it answers."]))
        if any(done.left for done in results.values()):
            shared.exit_with(self, 1, "More is left; run this again.")


def populate_queued_for_delete(room: int | None) -> Done:
    """Fill in `queued_for_delete` in the mappings that are older than this column."""
    unknown = InstanceMapping.objects.filter(queued_for_delete__isnull=True)
    done = Done(needed=unknown.count())
    if not done.needed:
        return done
    _fill(unknown.filter(cell__isnull=True), _wanted_somewhere, room, done)
    for cell in Cell.objects.order_by("name"):
        here = unknown.filter(cell=cell)
        reason = _fill(here, partial(_living_of, cell), room, done)
        if reason:
            left = counted(here.count(), "server is", "servers are")
            done.trouble.append(f"The cell {cell.name} does not answer ({reason}): {left} left.")
        else:
            done.left += here.count()
    return done


MIGRATIONS: dict[str, Callable[[int | None], Done]] = {"populate_queued_for_delete": populate_queued_for_delete}


def _fill(rows: QuerySet[InstanceMapping], living_of: Living, room: int | None, done: Done) -> str:
    """Migrate batch by batch; return why it stopped, "" when it did not.

    A delete that is requested meanwhile has set the flag itself.
    """
    after = ""
    while size := BATCH if room is None else min(BATCH, room - done.completed):
        ids = list(rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:size])
        if not ids:
            return ""
        living = living_of(ids)
        if isinstance(living, scatter.CellFailure):
            return living.reason
        after = ids[-1]
        done.completed += rows.filter(pk__in=living).update(queued_for_delete=False)
        done.completed += rows.filter(pk__in=set(ids) - living).update(queued_for_delete=True)
    return ""


def _living_of(cell: Cell, ids: list[str]) -> set[str] | scatter.CellFailure:
    return scatter.ask_one(cell, lambda _: _living(ids))


def _living(ids: list[str]) -> set[str]:
    """Return the servers of the targeted cell that are not deleted, and not about to be."""
    return {one.uuid for one in Instance.objects.filter(uuid__in=ids) if not deletion.is_ended(one)}


def _wanted_somewhere(ids: list[str]) -> set[str]:
    """Return the servers without a cell that have a build request and no requested delete."""
    waiting = BuildRequest.objects.filter(pk__in=ids, delete_requested=False)
    return set(waiting.values_list("pk", flat=True))
