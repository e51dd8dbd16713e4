"""The entry point: from the command line to an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from cloud.cli import arguments
from cloud.cli.errors import INTERRUPTED, CliError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; arguments.EXAMPLES lists the codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that the terminal cannot show must not fail
            stream.reconfigure(errors="backslashreplace")
    try:
        options = arguments.parse(argv)
        from cloud.cli import commands  # noqa: PLC0415  openstacksdk takes half a second, --help goes without it

        code = commands.run(options)
        sys.stdout.flush()
        return code
    except CliError as problem:
        from cloud.terminal import TerminalConsole  # noqa: PLC0415  rich takes 0.1 s, --help goes without it

        TerminalConsole(sys.stderr).say(f"stillwater: {problem}" + (f"\n  {problem.advice}" if problem.advice else ""))
        return problem.code
    except KeyboardInterrupt:
        print("stillwater: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `… | head`: the reader is gone; no error message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
