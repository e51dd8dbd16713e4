"""pytest -p tests.databases: only the tests that use a database. What the others find they find on any.

A test that opens one without being among them fails (`tests.conftest`), so none can be left out unseen.
With `--stories 8` of the stories, which all go the same way through the database, every eighth (`tests.conftest`).
"""

from __future__ import annotations

import pytest

USES = {"db", "transactional_db", "cells", "_no_memories"}  # fixtures


def used_by(item: pytest.Item) -> bool:
    """Whether a test may open a database."""
    return item.get_closest_marker("django_db") is not None or not USES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the others."""
    chosen = [item for item in items if used_by(item)]
    chosen_ones = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen_ones])
    items[:] = chosen
