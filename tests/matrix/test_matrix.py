"""{operations of two hosts} x {source, destination, conductor, broker, all} x {SIGTERM, kill -9} x {each step}.

`make test` runs some rows of the rounds of one process (`rows.sample`) when this file's turn comes in its sample of
live files (tests/sampling.py), `make matrix` all of them, or what MATRIX="-k resize-destination-SIGKILL" names. The
rows of a round (who, how) share the blow, so one of them costs nearly what all do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.matrix import rows
from tests.matrix.operations import CONDUCTOR, DEST, SOURCE
from tests.matrix.played import Played, play
from tests.matrix.rows import Row

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(600)]
IN_MAKE_TEST = frozenset(rows.sample(row for row in rows.every() if row.who in {SOURCE, DEST, CONDUCTOR}))


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """On the fake driver."""
    yield from play(request)


def marked(row: Row) -> object:
    """Those of `make test` are live, too."""
    return pytest.param(row, id=str(row), marks=[pytest.mark.live] if row in IN_MAKE_TEST else [])


@pytest.mark.parametrize("row", [marked(row) for row in rows.every()])
def test_whoever_is_ended(row: Row, played: Played):
    _, wrong = played.verdict(row)
    assert not wrong, "; ".join(wrong)
