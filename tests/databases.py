"""pytest -p tests.databases: only the tests that use a database. What the others find they find on any.

A test that opens one without being among them fails (`tests.conftest`), so none can be left out unseen.
`--stories 8`: of the stories of `tests/flow`, which all go the same way through the database, and of the tests of
pages, logins, images and commands, which ask it for nothing unusual, every eighth; races are all there. Which ones is
in their names, so it is the same ones every time.
"""

from __future__ import annotations

from zlib import crc32

import pytest

STORIES = tuple(f"tests/{name}/" for name in ("flow", "admin", "identity", "images", "management"))
USES = {"db", "transactional_db", "cells", "_no_memories"}  # fixtures


def used_by(item: pytest.Item) -> bool:
    """Whether a test may open a database."""
    return item.get_closest_marker("django_db") is not None or not USES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_addoption(parser: pytest.Parser) -> None:
    """See above."""
    parser.addoption("--stories", type=int, default=1, help="of tests/flow, one in so many")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the others."""
    one_in = config.getoption("--stories")
    chosen = [item for item in items if used_by(item) and _is_told(item, one_in)]
    chosen_ones = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen_ones])
    items[:] = chosen


def _is_told(item: pytest.Item, one_in: int) -> bool:
    is_story = item.nodeid.startswith(STORIES) and item.get_closest_marker("race") is None
    return not is_story or crc32(item.nodeid.encode()) % one_in == 0
