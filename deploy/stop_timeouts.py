"""How long a supervisor has to wait for a process: the process's own shutdown timeout, and a margin.

Units and manifests are plain files, complete as they are. Their numbers that follow from
STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT (and STILLWATER_GUESTS_SHUTDOWN_TIMEOUT) are filled in here, as `docs/generate.py`
fills the tables of the docs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cloud.env import GRACEFUL_SHUTDOWN_TIMEOUTS, VARIABLES
from deploy.local import envfiles
from deploy.local.state import ROOT

VARIABLE = "STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT"
GUESTS, SHUTDOWN = "STILLWATER_GUESTS_SHUTDOWN_TIMEOUT", "shutdown-guests"  # of the guests of a machine
GUESTS_MARGIN = 60  # to find out that a worker or a database does not answer, and to do it all the same
MARGIN = 20  # to record what is unfinished and to close, on a machine that is going down as a whole
INSTALLED = "/opt/stillwater"
_ROLE = re.compile(r"STILLWATER_ROLE\W+(?:value: )?(\w+)")

Fill = Callable[[str, int | None], str]  # (text, seconds between SIGTERM and SIGKILL; None: for ever) -> text


def supervisor_seconds(role: str, values: Mapping[str, str]) -> int | None:
    """What a supervisor has to be set to, so that the process ends by itself; None = it must wait for ever."""
    own = float(values[VARIABLE]) if values.get(VARIABLE) else GRACEFUL_SHUTDOWN_TIMEOUTS[role]
    return int(-(-own // 1)) + MARGIN if own else None


def guests_seconds(values: Mapping[str, str]) -> int | None:
    """The same for whoever shuts down a machine's guests."""
    own = int(values.get(GUESTS) or VARIABLES[GUESTS].default)
    return own + GUESTS_MARGIN if own else None


def filled(text: str, fill: Fill, values: Mapping[str, str], prefix: str = INSTALLED) -> str:
    """A unit or manifest with the numbers of its role; one without a role has none."""
    role = _ROLE.search(text)
    if role:
        text = fill(text, guests_seconds(values) if SHUTDOWN in text else supervisor_seconds(role[1], values))
    return text.replace(INSTALLED, prefix.rstrip("/"))


def main(folder: Path, pattern: str, fill: Fill, words: list[str]) -> int:
    """The command line that `deploy.systemd` and `deploy.kubernetes` share; its exit code."""
    wanted = _arguments(folder, words)
    values = envfiles.read(wanted.env_file) if wanted.env_file else {}
    stale = []
    for path in sorted(folder.glob(pattern)):
        text = path.read_text()
        fresh = filled(text, fill, values, wanted.prefix)
        target = wanted.output / path.name
        if not target.is_file() or target.read_text() != fresh:
            stale.append(str(target))
            if not wanted.check:
                target.write_text(fresh)
    if stale:
        sys.stdout.write(f"{'not up to date' if wanted.check else 'written'}: {', '.join(stale)}\n")
    return int(wanted.check and bool(stale))


def _arguments(folder: Path, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m deploy.{folder.name}",
        description="Fill in how long to wait for a process after SIGTERM, from its shutdown timeout.",
    )
    parser.add_argument("--env-file", type=Path, help=f"where {VARIABLE} is set; default: each role's own default")
    parser.add_argument("--output", type=Path, default=folder, help=f"default: {folder.relative_to(ROOT)}, in place")
    parser.add_argument("--prefix", default=INSTALLED, help="where this clone is installed (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something is to be written")
    return parser.parse_args(words)
