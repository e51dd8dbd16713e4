"""Which tests a run leaves out: `--sample faults=4 --sample stories=8` runs one in four, one in eight of these kinds.

A sample depends on the names of tests alone, so it is the same in every run and in every worker of pytest-xdist. A test
function with parameters keeps at least one of its cases. Races are never left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from zlib import crc32

import pytest

# Tests at many points of time: a process dies, a request is first, a step waits for a guest, a cell fails.
# `make test-fast` has none of them.
FAULTS = re.compile(
    r"kill|races?\b|_race|waiting|host_shutdown|host_guests|delete_graces|flow/test_shutdown_words|unit/test_shutdown_watcher|"
    r"virt/test_shutdown|flow/test_(emptying|evacuate|migrations|gone)\.py|cells/test_trouble|api/test_down_cell_table"
)
STORIES = tuple(f"tests/{name}/" for name in ("flow", "admin", "identity", "images"))
KINDS = ("faults", "stories", "live")


def add_options(parser: pytest.Parser) -> None:
    """Add `--sample`. Without it nothing is left out."""
    parser.addoption(
        "--sample", action="append", default=[], metavar="KIND=N",
        help="run one in N tests of a kind: faults (cases at which something fails), stories (tests/flow and pages), "
        "live (cases of tests with real processes); may be repeated",
    )  # fmt: skip


def mark(item: pytest.Item) -> None:
    """Add the markers `fault` and `race`, which depend on the test's name."""
    if FAULTS.search(item.nodeid) and not item.nodeid.startswith("tests/test_"):
        item.add_marker(pytest.mark.fault)
    if "race" in item.nodeid:
        item.add_marker(pytest.mark.race)


def split(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and those left out. Raises UsageError for a sample that does not exist."""
    wanted = _wanted(config.getoption("--sample"))
    left_out = _stories(items, wanted.get("stories", 1))
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in left_out and item.get_closest_marker("race") is None and hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for function, found in cases.items():
        one_in = min(wanted.get(_kind(found[0]), 1), len(found))
        chosen = crc32(function.encode()) % one_in
        left_out.update(item for number, item in enumerate(found) if number % one_in != chosen)
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def _wanted(words: list[str]) -> dict[str, int]:
    found = dict(word.partition("=")[::2] for word in words)
    if not all(kind in KINDS and count.isdigit() and int(count) for kind, count in found.items()):
        raise pytest.UsageError(f"--sample is KIND=N, where KIND is one of {', '.join(KINDS)}: {' '.join(words)}")
    return {kind: int(count) for kind, count in found.items()}


def _stories(items: list[pytest.Item], one_in: int) -> set[pytest.Item]:
    stories = [item for item in items if item.nodeid.startswith(STORIES) and item.get_closest_marker("race") is None]
    return {item for item in stories if crc32(item.nodeid.encode()) % one_in}


def _kind(item: pytest.Item) -> str:
    markers = {marker.name for marker in item.iter_markers()}
    return "live" if markers & {"live", "chaos"} else "faults" if "fault" in markers else ""
