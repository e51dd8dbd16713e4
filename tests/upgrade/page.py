"""The commands of docs/upgrade.md, as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.upgrade.trees import ROOT

PAGE = ROOT / "docs/upgrade.md"
ORDER = re.compile(r"^## The order$(.*?)^## ", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^### \d+\. (.+?)$(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"[A-Z_]+…?")


@dataclass(frozen=True, slots=True)
class Command:
    """One line of the page. `placeholder`: the word that stands for names or a number; "" when there is none."""

    words: Sequence[str]

    @property
    def placeholder(self) -> str:
        """The last word, when it is one."""
        return self.words[-1].rstrip("…") if PLACEHOLDER.fullmatch(self.words[-1]) else ""

    def about(self, *values: str) -> list[str]:
        """The command with values for its placeholder."""
        assert bool(values) == bool(self.placeholder), self.words
        return [*(self.words[:-1] if values else self.words), *values]

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True)
class Step:
    """A heading of the page, and the commands below it."""

    title: str
    commands: Sequence[Command]


def steps(page: Path = PAGE) -> list[Step]:
    """The steps of an upgrade in their order."""
    [order] = ORDER.findall(page.read_text())
    return [Step(title, commands(text)) for title, text in STEP.findall(order)]


def commands(text: str) -> list[Command]:
    """The lines of the code blocks in a text."""
    return [Command(tuple(shlex.split(line))) for block in BLOCK.findall(text) for line in block.splitlines()]
