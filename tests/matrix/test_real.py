"""The matrix with real guests, on two libvirtd: live migration and resize, there and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.matrix.operations import CONDUCTOR, DEST, SOURCE
from tests.matrix.played import Played, play
from tests.matrix.real import RealRounds
from tests.matrix.rows import KILL, TERM, Row, of_round

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]
NAMES = ("live-migrate", "resize", "revert")
ROWS = [row for who in (SOURCE, DEST, CONDUCTOR) for how in (TERM, KILL) for row in of_round(who, how, NAMES)]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """On libvirt."""
    yield from play(request, RealRounds)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_whoever_is_ended_real_guests_are_in_one_place(row: Row, played: Played):
    _, wrong = played.verdict(row)
    assert not wrong, "; ".join(wrong)
