"""{operations of two hosts} x {source, destination, conductor, broker, all} x {SIGTERM, kill -9} x {each step}.

`make test` runs the rounds of one process, `make matrix` all of them, or what MATRIX="-k resize-destination-SIGKILL"
names. The rows of a round (who, how) share the blow, so one of them costs nearly what all do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.matrix import rows
from tests.matrix.operations import CONDUCTOR, DEST, SOURCE
from tests.matrix.rounds import Rounds, opened
from tests.matrix.rows import Row

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(600)]
IN_MAKE_TEST = {SOURCE, DEST, CONDUCTOR}


class Played:
    """Verdicts of the rounds so far; a round is played when its first row is asked for."""

    def __init__(self, rounds: Rounds, selected: list[Row]) -> None:
        self.rounds, self.selected = rounds, selected
        self.verdicts: dict[Row, tuple[str, list[str]]] = {}

    def verdict(self, row: Row) -> tuple[str, list[str]]:
        """How it ended, and what is wrong."""
        if row not in self.verdicts:
            mine = [other for other in self.selected if other.round == row.round]
            try:
                self.verdicts |= self.rounds.play(mine)
            except AssertionError as broken:
                self.rounds.release()
                self.verdicts |= {other: ("", [f"its round broke: {broken}"]) for other in mine}
        return self.verdicts[row]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """With the rows this session has selected."""
    mine = [item for item in request.session.items if item.module is request.module]
    said: list[str] = []
    with opened(said.append) as rounds:
        one = Played(rounds, [item.callspec.params["row"] for item in mine])
        yield one
    outcomes = Counter(outcome for outcome, _ in one.verdicts.values())
    said.append(f"{len(one.verdicts)} rows: {', '.join(f'{count} {what}' for what, count in outcomes.most_common())}")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *said, sep="\n")


def marked(row: Row) -> object:
    """Those of one process are live, too."""
    return pytest.param(row, id=str(row), marks=[pytest.mark.live] if row.who in IN_MAKE_TEST else [])


@pytest.mark.parametrize("row", [marked(row) for row in rows.every()])
def test_whoever_is_ended(row: Row, played: Played):
    _, wrong = played.verdict(row)
    assert not wrong, "; ".join(wrong)
