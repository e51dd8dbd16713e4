"""How a command of `manage.py` (installed: `stillwater-manage`) starts, and ends when its output pipe closes.

Our commands show no admin pages, and start a third faster without them.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from cloud import env

SIGPIPE = 141  # the exit code by which a shell reports this signal
APPS = ("cells", "compute", "tasks", "cloud/identity", "cloud/images")
PROGRAMS = ("manage.py", "stillwater-manage")


def is_ours(argv: Sequence[str]) -> bool:
    """Return whether `argv` is one of PROGRAMS with a command of ours, not of Django (check, shell …)."""
    if len(argv) < 2 or Path(argv[0]).name not in PROGRAMS:
        return False
    return any((env.ROOT / app / "management/commands" / f"{argv[1]}.py").is_file() for app in APPS)


@contextmanager
def quiet_on_a_closed_pipe() -> Iterator[None]:
    """End the command silently, as SIGPIPE would, when the reader of its output is gone (`... | head`)."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # else Python does it at exit, and complains
    except BrokenPipeError:
        closed = [out for out in (sys.stdout, sys.stderr) if _has_no_reader(out)]
        if not closed:  # a connection of the command broke
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for out in closed:
            os.dup2(nowhere, out.fileno())
        sys.exit(SIGPIPE)


def _has_no_reader(out: TextIO) -> bool:
    poll = select.poll()
    poll.register(out.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
