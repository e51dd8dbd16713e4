"""manage.py upgrade_check: what is left to do of an upgrade, in its order (docs/upgrade.md)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from cells import scatter
from cells.management import options as shared
from cells.models import Cell, InstanceMapping
from cloud.words import counted
from compute.hosts import api_heartbeat
from compute.models import Step
from compute.models.host import COMPUTE, CONDUCTOR, SCHEDULER
from compute.operations import registry, versions

NAMED = 5  # services named in one line
SECONDS = 10.0  # for all cells: the answer decides about an upgrade, and a cell that is busy is not down
OK, UNKNOWN, WAITS, STOPS = "ok", "not known", "to do", "stops the upgrade"
WORKERS = {CONDUCTOR: "conductors", COMPUTE: "hosts", SCHEDULER: "schedulers"}


@dataclass(slots=True)
class _CellReading:
    """What one cell says: services by version, whether it is migrated, and the steps this version does not know."""

    services: list[tuple[str, str, int]]
    migrated: bool
    unknown: set[str]


class Command(BaseCommand):
    """Changes nothing, and may be run at any time; a cell that does not answer is a line of its own."""

    help = (
        "List what is left to do of an upgrade to this version of the code, in order: migrations, workers, APIs, data. "
        "Exit codes: 0 nothing is left; 1 something is to do; 2 something stops the upgrade: a cell does not answer, "
        "or has operations of a newer version."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add `--json`, which prints a list of checks."""
        shared.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one row per check."""
        cells = list(Cell.objects.order_by("name"))
        # Once, and in this thread: a loader imports the migrations anew, which threads cannot do at the same time.
        migrations = set(MigrationLoader(None).disk_migrations)
        gathered = scatter.gather(cells, partial(_read, migrations), timeout=SECONDS)
        read = {cell.name: gathered.answers[cell.id] for cell in cells if cell.id in gathered.answers}
        is_migrated = _is_migrated("default", migrations)
        down = {cell.name: gathered.down[cell.id].reason for cell in cells if cell.id in gathered.down}
        checks = [_answering(down), _known(read), _migrated(read, is_migrated), *_upgraded(read)]
        checks += [_apis(is_migrated), _data(is_migrated)]
        rows = [{"check": name, "result": result, "what to do": todo} for name, result, todo in checks]
        if options["json"]:
            shared.print_json(self, rows)
        else:
            shared.print_table(self, ("check", "result", "what to do"), rows)
        results = {row["result"] for row in rows}
        if STOPS in results:
            shared.exit_with(self, 2, "Do not go on: something stops the upgrade.")
        if WAITS in results:
            first = next(row for row in rows if row["result"] == WAITS)
            shared.exit_with(self, 1, f"Next: {first['what to do']}")


Check = tuple[str, str, str]  # name, result, what to do
Migration = tuple[str, str]  # app, name


def _read(migrations: Set[Migration], cell: Cell) -> _CellReading:
    """Read one cell: services and open steps only when its tables are those of this version."""
    migrated = _is_migrated(cell.alias, migrations)
    opened = Step.objects.open().select_related("action").only("name", "action__key") if migrated else ()
    unknown = {f"{step.action.key}.{step.name}" for step in opened if registry.known(step) is None}
    return _CellReading(list(versions.services_by_version()) if migrated else [], migrated, unknown)


def _is_migrated(alias: str, migrations: Set[Migration]) -> bool:
    return migrations <= set(MigrationRecorder(connections[alias]).applied_migrations())


def _answering(down: Mapping[str, str]) -> Check:
    if not down:
        return "cells answer", OK, ""
    why = "; ".join(f"{name} does not: {reason}" for name, reason in down.items())
    return "cells answer", STOPS, f"{why}. Its services and tables cannot be checked."


def _known(read: Mapping[str, _CellReading]) -> Check:
    found = [f"{name}: {', '.join(sorted(one.unknown))}" for name, one in read.items() if one.unknown]
    if not found:
        return "operations are known", OK, ""
    began = f"A newer version began {'; '.join(found)}."
    return "operations are known", STOPS, f"{began} Run that version, or let them end."


def _migrated(read: Mapping[str, _CellReading], is_migrated: bool) -> Check:
    late = [name for name, one in read.items() if not one.migrated]
    commands = [] if is_migrated else ["manage.py migrate"]
    commands += ["manage.py cell_migrate"] * bool(late)
    todo = ", then ".join(commands) + (f" (for {', '.join(late)})" if late else "")
    return "databases are migrated", WAITS if commands else OK, todo


def _upgraded(read: Mapping[str, _CellReading]) -> list[Check]:
    """Return a check for each kind of worker, in the order in which they are upgraded."""
    found = []
    for binary, kind in WORKERS.items():
        old = [host for one in read.values() for what, host, version in one.services
               if what == binary and version < versions.CURRENT]  # fmt: skip
        named = " ".join(old[:NAMED]) + (f" … ({len(old)} in all)" if len(old) > NAMED else "")
        found.append((f"{kind} are upgraded", WAITS if old else OK, f"manage.py host restart {named}" if old else ""))
    return found


def _apis(is_migrated: bool) -> Check:
    name = "APIs are upgraded"
    found = dict(api_heartbeat.living().order_by("-version").values_list("host", "version")) if is_migrated else {}
    if not found:
        return name, UNKNOWN, "no API reports its version; releases up to 0.1 do not"
    old = [host for host, version in found.items() if version < versions.CURRENT]
    return name, WAITS if old else OK, f"restart the API on {' '.join(sorted(old))}" if old else ""


def _data(is_migrated: bool) -> Check:
    """Count what `online_data_migrations` would change."""
    if not is_migrated:
        return "data is migrated", WAITS, "manage.py online_data_migrations, after the migrations"
    left = InstanceMapping.objects.filter(queued_for_delete__isnull=True).count()
    todo = f"manage.py online_data_migrations ({counted(left, 'row')})" if left else ""
    return "data is migrated", WAITS if left else OK, todo
