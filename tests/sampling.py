"""Which tests a run leaves out: `--moments 4` and `--stories 8`.

A sample depends on the names of tests alone, so it is the same in every run and in every worker of pytest-xdist. Races
are never left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from zlib import crc32

import pytest

# Tests at many moments: a process dies, a request is first, a step waits for a guest, a cell fails. `make test-fast`
# has none of them.
WEATHER = re.compile(
    r"kill|races?\b|_race|waiting|host_shutdown|host_guests|delete_graces|flow/test_shutdown_words|unit/test_shutdown_watcher|"
    r"virt/test_shutdown|flow/test_(emptying|evacuate|migrations|gone)\.py|cells/test_trouble|api/test_down_cell_table"
)
STORIES = tuple(f"tests/{name}/" for name in ("flow", "admin", "identity", "images"))


def add_options(parser: pytest.Parser) -> None:
    """Add `--moments` and `--stories`; the default 1 leaves nothing out."""
    parser.addoption("--moments", type=int, default=1, help="of the moments of each weather test, run one in so many")
    parser.addoption("--stories", type=int, default=1, help="of tests/flow and its like, run one in so many")


def mark(item: pytest.Item) -> None:
    """Add the markers `weather` and `race`, which depend on the test's name."""
    if WEATHER.search(item.nodeid) and not item.nodeid.startswith("tests/test_"):
        item.add_marker(pytest.mark.weather)
    if "race" in item.nodeid:
        item.add_marker(pytest.mark.race)


def split(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests to run, and those left out."""
    moments, stories = config.getoption("--moments"), config.getoption("--stories")
    run, left_out = [], []
    for item in items:
        chosen = _is_chosen(item, moments, _is_moment) and _is_chosen(item, stories, _is_story)
        (run if chosen else left_out).append(item)
    return run, left_out


def _is_chosen(item: pytest.Item, one_in: int, concerns: Callable[[pytest.Item], bool]) -> bool:
    return not concerns(item) or crc32(item.nodeid.encode()) % one_in == 0


def _is_moment(item: pytest.Item) -> bool:
    markers = {marker.name for marker in item.iter_markers()}
    return "weather" in markers and "race" not in markers and hasattr(item, "callspec")


def _is_story(item: pytest.Item) -> bool:
    return item.nodeid.startswith(STORIES) and item.get_closest_marker("race") is None
