"""pytest -n 3 -p tests.live.together: the tests that share a cloud run in one process, else each would start its own.

By file, for that is all xdist's controller knows of a test: `--dist loadgroup` finds no groups with pytest 9.
Those that take long begin first, lest one process works alone at the end; what each took is printed then.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[2]
CLOUDS = ("pair_cloud", "fake_cloud", "cloud", "ironic")  # of the session; helpers call any of them "cloud"
# Longest first, as the last lines of a run say; the others take less than half a minute.
LONG = (
    "pair_cloud", "tests/live/test_host_commands.py", "fake_cloud", "cloud", "tests/matrix/test_matrix.py",
    "tests/live/test_drain.py", "tests/live/test_two_hosts.py", "tests/live/test_live_migration.py",
    "tests/chaos/test_short.py", "tests/live/test_units.py", "tests/live/test_emptying.py",
    "tests/live/test_snapshots.py",
)  # fmt: skip


class Together(LoadScopeScheduling):
    """A file, or all files that use one cloud of the session, at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = min(self.workqueue, key=lambda group: LONG.index(group) if group in LONG else len(LONG))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


@cache
def group_of(file: str) -> str:
    """The cloud its tests share with other files, else the file."""
    source = (ROOT / file).read_text()
    for name in CLOUDS:
        asked_for = re.search(rf"^def \w+\(([^)]*\W)?{name}\b", source, re.MULTILINE)
        if asked_for and not re.search(rf"^def {name}\(", source, re.MULTILINE):
            return name
    return file


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    """Called by xdist, in the process that reports."""
    return Together(config, log)


class Took:
    """How long each group took, set-up and all; when it was over, and in which process."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._over: dict[str, tuple[float, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A set-up, a test or a tear-down is over."""
        group = group_of(report.nodeid.partition("::")[0])
        self._seconds[group] += report.duration
        self._over[group] = time.monotonic() - self._began, getattr(report, "worker_id", "here")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Longest first."""
        for group, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            over, worker = self._over[group]
            terminalreporter.write_line(f"{seconds:6.0f} s  {group} (over after {over:.0f} s, in {worker})")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Took())
