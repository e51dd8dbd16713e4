"""The time a supervisor waits between SIGTERM and SIGKILL: the shutdown timeout of the process plus a margin.

The units in deploy/systemd and the manifests in deploy/kubernetes are complete files. Their numbers that follow from
STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT and STILLWATER_GUESTS_SHUTDOWN_TIMEOUT are filled in here, as `docs/generate.py`
fills the tables of the docs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cloud.env import GRACEFUL_SHUTDOWN_TIMEOUTS, ROOT, VARIABLES
from tasks import worker_process

VARIABLE = "STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT"
GUESTS, SHUTDOWN = "STILLWATER_GUESTS_SHUTDOWN_TIMEOUT", "shutdown-guests"  # for all guests of a machine
GUESTS_MARGIN = 60  # to notice that a worker or a database does not answer, and to shut down the guests without it
MARGIN = 20  # to record unfinished steps and to close, while the whole machine shuts down
INSTALLED = "/opt/stillwater"
_ROLE = re.compile(r"STILLWATER_ROLE\W+(?:value: )?(\w+)")

Fill = Callable[[str, int | None], str]  # (text, seconds between SIGTERM and SIGKILL; None: no limit) -> text


def supervisor_seconds(role: str, values: Mapping[str, str]) -> int | None:
    """Return the seconds a supervisor must wait for a process of this role; None: without limit.

    `values` are the variables of the env file.
    """
    own = float(values[VARIABLE]) if values.get(VARIABLE) else GRACEFUL_SHUTDOWN_TIMEOUTS[role]
    return int(-(-own // 1)) + MARGIN if own else None


def guests_seconds(values: Mapping[str, str]) -> int | None:
    """Return the same for the process that shuts down all guests of a machine."""
    own = int(values.get(GUESTS) or VARIABLES[GUESTS].default)
    return own + GUESTS_MARGIN if own else None


def filled(text: str, fill: Fill, values: Mapping[str, str], prefix: str = INSTALLED) -> str:
    """Return a unit or manifest with the numbers of its role and the install path. No role: no numbers."""
    role = _ROLE.search(text)
    if role:
        text = fill(text, guests_seconds(values) if SHUTDOWN in text else supervisor_seconds(role[1], values))
    return text.replace(INSTALLED, prefix.rstrip("/"))


def main(folder: Path, pattern: str, fill: Fill, words: list[str]) -> int:
    """Run the command line that `deploy.systemd` and `deploy.kubernetes` share, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m deploy.{folder.name}",
        description="Fill in how long to wait for a process after SIGTERM, from its shutdown timeout.",
    )
    add_arguments(parser, folder)
    wanted = parser.parse_args(words)
    stale = write(folder, pattern, fill, wanted)
    if stale:
        sys.stdout.write(f"{'not up to date' if wanted.check else 'written'}: {', '.join(stale)}\n")
    return int(wanted.check and bool(stale))


def add_arguments(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Add the options that `write` takes."""
    parser.add_argument("--env-file", type=Path, help=f"where {VARIABLE} is set; default: each role's own default")
    parser.add_argument("--output", type=Path, default=folder, help=f"default: {folder.relative_to(ROOT)}, in place")
    parser.add_argument("--prefix", default=INSTALLED, help="the folder that has the .venv (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something is to be written")


def write(folder: Path, pattern: str, fill: Fill, wanted: argparse.Namespace) -> list[str]:
    """Write the files that differ from what they are to say, and return their paths; with --check only return them."""
    values = worker_process.read(wanted.env_file) if wanted.env_file else {}
    stale = []
    for path in sorted(folder.glob(pattern)):
        fresh = filled(path.read_text(), fill, values, wanted.prefix)
        target = wanted.output / path.name
        if not target.is_file() or target.read_text() != fresh:
            stale.append(str(target))
            if not wanted.check:
                target.write_text(fresh)
    return stale
