"""{each operation of two hosts} x {source, destination, conductor} x {SIGTERM, kill -9} x {each of its steps}.

`make matrix` runs all of it, `make test` a sample; `-k resize-destination-SIGKILL` runs what it names. The rows of a
round (who, how) share the blow, so it costs the same whether one of them is asked for or all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.matrix import rows
from tests.matrix.rounds import Rounds, opened
from tests.matrix.rows import Row

pytestmark = pytest.mark.timeout(900)
SAMPLE = rows.sample()


class Played:
    """Verdicts of the rounds so far; a round is played when its first row is asked for."""

    def __init__(self, rounds: Rounds, selected: list[Row]) -> None:
        self.rounds, self.selected = rounds, selected
        self.verdicts: dict[Row, tuple[str, list[str]]] = {}

    def verdict(self, row: Row) -> tuple[str, list[str]]:
        """How it ended, and what is wrong."""
        if row not in self.verdicts:
            self.verdicts |= self.rounds.play(other for other in self.selected if other.round == row.round)
        return self.verdicts[row]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """With the rows this session has selected."""
    mine = [item for item in request.session.items if item.module is request.module]
    with opened(print) as rounds:
        yield Played(rounds, [item.callspec.params["row"] for item in mine if hasattr(item, "callspec")])


def marked(row: Row) -> object:
    """The sample is live, too."""
    return pytest.param(row, id=str(row), marks=[pytest.mark.matrix, *([pytest.mark.live] if row in SAMPLE else [])])


@pytest.mark.parametrize("row", [marked(row) for row in rows.every()])
def test_whoever_is_ended(row: Row, played: Played, record_property):
    outcome, wrong = played.verdict(row)
    record_property("outcome", outcome)
    assert not wrong, "; ".join(wrong)
