"""The watch over a migration that runs: its progress in the record, and what ends it early.

A live migration ends early when a user aborts or forces it, when another action takes the server, at its own deadline,
and when a drain of one of its hosts would be over first (STILLWATER_DRAIN_LIVE_MIGRATIONS).
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models import Min
from django.utils import timezone

from cloud import log
from cloud.words import counted
from compute import state
from compute.errors import StateConflict
from compute.migration.moves import MoveParams
from compute.models import Service
from compute.operations import journal
from compute.operations.action import StepContext
from compute.state import Move
from compute.virt.base import Command, Progress

logger = log.get(__name__)
LOOK_EVERY = 0.4  # seconds between two reads of the abort flag: each is a few small queries
WINDOW = 10.0  # seconds of progress from which the end is forecast
PATIENCE = 20.0  # seconds for which the forecast has to be too late: each pass over the memory starts with a jump
MARGIN = 15.0  # seconds before the drain's deadline at which the forecast of the moment decides
AT_DRAIN = {"wait": Command.GO_ON, "force": Command.END_NOW, "abort": Command.ABORT}  # by the setting's value


@dataclass(slots=True)
class Forecast:
    """When a migration ends, from what it reported in the last WINDOW seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)  # seconds since its start, bytes left

    def add(self, progress: Progress) -> None:
        """Add a report."""
        if progress.memory_total + progress.disk_total:
            self._seen.append((progress.seconds, progress.memory_left + progress.disk_left))
        while len(self._seen) > 2 and self._seen[1][0] <= progress.seconds - WINDOW:
            self._seen.popleft()

    def seconds_left(self) -> float | None:
        """Return the seconds to the end; infinity when it does not come nearer, None when not enough was seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < WINDOW / 2:
            return None
        (then, before), (now, left) = self._seen[0], self._seen[-1]
        return left * (now - then) / (before - left) if before > left else math.inf

    def words(self) -> str:
        """Return the forecast for people; "" when there is none."""
        left = self.seconds_left()
        if left is None:
            return ""
        return ", comes no nearer to its end" if left == math.inf else f", ends in about {math.ceil(left)} s"


class MigrationWatch:
    """The callback of `Driver.migrate_out()`. `why`: what it ended the migration early for, beside a request; or "".

    `seconds`: the time limit of a live migration, which a restart does not extend; None: it is a cold one.
    """

    def __init__(self, run: StepContext[MoveParams], move: Move, *, seconds: float | None = None) -> None:
        self._run, self._move, self._seconds = run, move, seconds
        self._deadline = None if seconds is None else run.deadline(seconds)
        self._looked = 0.0
        self._forecast, self._late_since = Forecast(), 0.0
        self.why = ""

    def __call__(self, progress: Progress) -> Command:
        """Record the progress; return what the migration has to do next."""
        if time.monotonic() - self._looked < LOOK_EVERY:
            return Command.GO_ON
        self._looked = time.monotonic()
        self._forecast.add(progress)
        try:
            command = self._record(progress)
            if command is Command.GO_ON and self._deadline is not None:
                command = self._at_drain()
        except StateConflict:  # a delete or an operator's reset took the server
            return Command.ABORT
        except Error:  # the database is away: the migration goes on
            close_old_connections()
            return Command.GO_ON
        except journal.StepLost:  # another process has the step now and may rely on the running migration
            return Command.GO_ON
        if self._deadline is not None and timezone.now() > self._deadline:
            self.why = f"the migration was not over after {self._seconds:.0f} s"
            return Command.ABORT
        return command

    def _record(self, progress: Progress) -> Command:
        total, left = progress.memory_total + progress.disk_total, progress.memory_left + progress.disk_left
        percent, run = 100 * (total - left) // total if total else 0, self._run
        words = f"{percent} % of {total >> 20} MiB after {progress.seconds:.0f} s{self._forecast.words()}"
        with run.fenced():
            state.during(run.instance, self._move, progress=percent)
            journal.change_params(run.action, MoveParams, lambda params: replace(params, progress=progress))
            journal.set_details(run.step, words)
        if run.params.abort:
            return Command.ABORT
        return Command.END_NOW if run.params.force else Command.GO_ON

    def _at_drain(self) -> Command:
        """Return what the setting says about a migration that would outlast the drain of one of its hosts."""
        command = AT_DRAIN[settings.DRAIN_LIVE_MIGRATIONS]
        deadline = None if command is Command.GO_ON else self._drain_deadline()
        if deadline is None:
            return Command.GO_ON
        seconds, ends_in = (deadline - timezone.now()).total_seconds(), self._forecast.seconds_left()
        if seconds > MARGIN and (ends_in is None or ends_in < seconds):
            self._late_since = 0.0
            return Command.GO_ON
        self._late_since = self._late_since or time.monotonic()
        if seconds > MARGIN and time.monotonic() - self._late_since < PATIENCE:
            return Command.GO_ON
        if ends_in is not None and ends_in < seconds:
            return Command.GO_ON
        if not self.why:
            left = "is over" if seconds <= 0 else f"is over in {counted(int(seconds), 'second')}"
            self.why = f"a drain of its hosts {left}, before the migration{self._forecast.words()}"
            logger.info("migration.outlasts_drain", server=self._run.instance.uuid, command=command.value,
                        drain_seconds=round(seconds, 1), ends_in=ends_in)  # fmt: skip
        return command

    def _drain_deadline(self) -> datetime | None:
        """Return the earliest deadline of a drain of the source or the destination; None when there is none."""
        hosts = (self._run.params.source, self._run.params.destination)
        draining = Service.objects.computes(host__in=hosts, draining_since__isnull=False)
        found: datetime | None = draining.aggregate(first=Min("drain_deadline"))["first"]
        return found
