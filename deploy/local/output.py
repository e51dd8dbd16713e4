"""Terminal output: one line per step, and one plain sentence when a step fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAST_LINES = 12


class Failed(Exception):
    """A step failed: the sentence says what happened, `log` shows why, `advice` says what to do next."""

    def __init__(self, sentence: str, *, log: Path | None = None, advice: str = "") -> None:
        super().__init__(sentence)
        self.log, self.advice = log, advice

    def show(self) -> None:
        """Print the sentence, the end of the log and the advice."""
        print(f"✗ {self}", file=sys.stderr)
        if self.log and self.log.is_file():
            print(f"  the end of {self.log}:", file=sys.stderr)
            for line in self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
                print(f"    {line[:400]}", file=sys.stderr)
        if self.advice:
            print(f"  {self.advice}", file=sys.stderr)


class NoteLine:
    """Text that a step adds to its line."""

    text = ""


@contextmanager
def step(title: str) -> Iterator[NoteLine]:
    """Time a step and print its line when it is done; a step that fails prints none."""
    started = time.monotonic()
    note = NoteLine()
    yield note
    say(f"{title}{': ' + note.text if note.text else ''}", time.monotonic() - started)


def say(text: str, seconds: float | None = None) -> None:
    """Print one line with a tick, and the duration if there is one."""
    took = "" if seconds is None else f"  {seconds:.1f} s"
    print(f"✓ {text}{took}", flush=True)


def hint(text: str) -> None:
    """Print a line without a tick."""
    print(f"  {text}", flush=True)
