"""The errors of the command, each with a sentence on what to do, and the exit codes."""

from __future__ import annotations

DONE, FAILED, USAGE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 4, 130


class CliError(Exception):
    """An error that ends the command. `advice` says what the user can do."""

    code = FAILED

    def __init__(self, sentence: str, advice: str = "") -> None:
        super().__init__(sentence)
        self.advice = advice


class UsageError(CliError):
    """The command line or clouds.yaml is wrong."""

    code = USAGE


class ServiceUnavailable(CliError):
    """The API did not answer, or answered that it cannot now. The same request may work later."""
