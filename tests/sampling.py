"""Which tests a run leaves out: `--sample live=4 --sample stories=8` runs one in four, one in eight of these kinds.

The sample depends on the names of tests and on a number, `--turn`: with the next number the next tests have their
turn, so that N runs with successive numbers run every test once. The default is the number of commits. Tests with
real processes are chosen by file, since those of a file share a cloud and may build on each other, unless they are
marked `independent`. Races are never left out, and a test function with parameters keeps at least one of its fault
cases.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest

# Tests at many points of time: a process dies, a request is first, a step waits for a guest, a cell fails.
# `make test-fast` has none of them.
FAULTS = re.compile(
    r"simulation/|kill|races?\b|_race|waiting|host_shutdown|host_guests|delete_graces|flow/test_shutdown_words|"
    r"unit/test_shutdown_watcher|"
    r"virt/test_shutdown|flow/test_(emptying|evacuate|migrations|gone)\.py|cells/test_trouble|api/test_down_cell_table"
)
STORIES = tuple(f"tests/{name}/" for name in ("flow", "admin", "identity", "images"))
KINDS = ("faults", "stories", "api", "live")


def add_options(parser: pytest.Parser) -> None:
    """Add `--sample` and `--turn`. Without `--sample` nothing is left out."""
    parser.addoption(
        "--sample", action="append", default=[], metavar="KIND=N",
        help="run one in N tests of a kind: faults (cases at which something fails), stories (tests/flow and pages), "
        "api (tests/api), live (files of tests with real processes); may be repeated",
    )  # fmt: skip
    parser.addoption("--turn", type=int, help="which of the N samples; default: the number of commits")


def mark(item: pytest.Item) -> None:
    """Add the markers `fault` and `race`, which depend on the test's name."""
    if FAULTS.search(item.nodeid) and not item.nodeid.startswith("tests/test_"):
        item.add_marker(pytest.mark.fault)
    if "race" in item.nodeid:
        item.add_marker(pytest.mark.race)


def turn(config: pytest.Config) -> int:
    """Return the number that chooses the sample; 0 where there is no git."""
    given: int | None = config.getoption("--turn")
    if given is None:
        count = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
        given = int(subprocess.run(count, capture_output=True, text=True, check=False).stdout or 0)
    return given


def split(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and those left out. Raises UsageError for a sample that does not exist."""
    wanted = _wanted(config.getoption("--sample"))
    if not wanted:
        return items, []
    number, left_out = turn(config), set()
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        kind = _kind(item)
        if kind == "faults":
            cases[item.nodeid.partition("[")[0]].append(item)
            continue
        by_file = kind == "live" and item.get_closest_marker("independent") is None
        unit = item.nodeid.partition("::")[0] if by_file else item.nodeid
        if (crc32(unit.encode()) + number) % wanted.get(kind, 1):
            left_out.add(item)
    for function, found in cases.items():
        one_in = min(wanted.get("faults", 1), len(found))
        chosen = (crc32(function.encode()) + number) % one_in
        left_out.update(item for place, item in enumerate(found) if place % one_in != chosen)
    return [item for item in items if item not in left_out], [item for item in items if item in left_out]


def _wanted(words: list[str]) -> dict[str, int]:
    found = dict(word.partition("=")[::2] for word in words)
    if not all(kind in KINDS and count.isdigit() and int(count) for kind, count in found.items()):
        raise pytest.UsageError(f"--sample is KIND=N, where KIND is one of {', '.join(KINDS)}: {' '.join(words)}")
    return {kind: int(count) for kind, count in found.items()}


def _kind(item: pytest.Item) -> str:
    markers = {marker.name for marker in item.iter_markers()}
    if markers & {"live", "chaos"}:
        return "live"
    if "race" in markers:
        return ""
    if "fault" in markers and hasattr(item, "callspec"):
        return "faults"
    if item.nodeid.startswith(STORIES):
        return "stories"
    return "api" if item.nodeid.startswith("tests/api/") else ""
