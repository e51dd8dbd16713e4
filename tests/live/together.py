"""pytest -n 2 -p tests.live.together: the tests that share a cloud run in one process, else each would start its own.

By file, for that is all xdist's controller knows of a test: `--dist loadgroup` finds no groups with pytest 9.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[2]
CLOUDS = ("pair_cloud", "fake_cloud", "cloud")  # of the session; helpers call any of them "cloud"


class Together(LoadScopeScheduling):
    """A file, or all files that use one cloud of the session, at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


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
