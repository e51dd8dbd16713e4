"""Cells whose database does not answer, as `up` and `status` report them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from deploy.local.manage_commands import manage
from deploy.local.state import StackState

ADVICE = "Bring it back (docs/runbooks/cell-down.md); nothing has to be restarted."


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as `manage.py cell_list` shows it now; `trouble` is empty when its database answers."""

    name: str
    database: str  # how quickly it answers, or why it does not
    trouble: str
    url: str  # without a password

    @property
    def sentence(self) -> str:
        """The message about a cell whose database does not answer."""
        return f"the database of {self.name} does not answer: {self.trouble} ({self.url})"


def cells(state: StackState) -> list[Cell]:
    """Return all cells."""
    rows = json.loads(manage(state, "cell_list", "--json"))
    return [Cell(row["name"], row["database"], row["database_trouble"], row["database_url"]) for row in rows]


def away(state: StackState) -> list[Cell]:
    """Return the cells whose database does not answer."""
    return [cell for cell in cells(state) if cell.trouble]
