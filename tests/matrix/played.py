"""Verdicts of the rounds so far; a round is played when the first of its rows is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.matrix.rounds import Rounds, opened
from tests.matrix.rows import Row

Verdict = tuple[str, list[str]]


class Played:
    """With the rows a session has selected."""

    def __init__(self, rounds: Rounds, selected: list[Row]) -> None:
        self.rounds, self.selected = rounds, selected
        self.verdicts: dict[Row, Verdict] = {}

    def verdict(self, row: Row) -> Verdict:
        """How it ended, and what is wrong."""
        if row not in self.verdicts:
            mine = [other for other in self.selected if other.round == row.round]
            try:
                self.verdicts |= self.rounds.play(mine)
            except AssertionError as broken:
                self.rounds.release()
                self.verdicts |= {other: ("", [f"its round broke: {broken}"]) for other in mine}
        return self.verdicts[row]


def play(request: pytest.FixtureRequest, kind: type[Rounds] = Rounds) -> Iterator[Played]:
    """For a fixture of a module whose tests have a `row`; says at the end how many rows ended how."""
    mine = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    said: list[str] = []
    with opened(said.append, kind) as rounds:
        played = Played(rounds, [item.callspec.params["row"] for item in mine])
        yield played
    outcomes = Counter(outcome or "broken" for outcome, _ in played.verdicts.values()).most_common()
    said.append(f"{len(played.verdicts)} rows: {', '.join(f'{count} {what}' for what, count in outcomes)}")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *said, sep="\n")
