"""How `manage.py host` ends: exit codes, the outcome for one host, the refusal of a command line."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.management.snapshot import ServiceSnapshot

DONE, USAGE, STILL, SILENT, UNFINISHED, NOT_STARTED, CANCELLED = 0, 1, 2, 3, 4, 5, 6
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one host: the command's exit code and a sentence."""

    code: int
    sentence: str
    snapshot: ServiceSnapshot | None = None  # the last one, where the service record does not show it


class CommandRefused(Exception):
    """Ends the command with this sentence and this exit code."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code
