"""What a process was started for, and how it ends when its output is not read to its end.

Commands of ours show no pages, and start a third faster without them.
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

SIGPIPE = 141  # what a shell says of a program that ended by this signal
APPS = ("cells", "compute", "tasks", "cloud/identity", "cloud/images")


def is_ours(argv: Sequence[str]) -> bool:
    """Whether it is `manage.py` with a command of ours, and not one of Django's (check, collectstatic, shell …)."""
    if len(argv) < 2 or Path(argv[0]).name != "manage.py":
        return False
    return any((env.ROOT / app / "management/commands" / f"{argv[1]}.py").is_file() for app in APPS)


@contextmanager
def quiet_on_a_closed_pipe() -> Iterator[None]:
    """`... | head` has seen enough: the command ends without a word, as a program does that SIGPIPE ends."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # or Python does at its very end, and complains
    except BrokenPipeError:
        closed = [out for out in (sys.stdout, sys.stderr) if _has_no_reader(out)]
        if not closed:  # it is a connection of the command that broke
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for out in closed:
            os.dup2(nowhere, out.fileno())
        sys.exit(SIGPIPE)


def _has_no_reader(out: TextIO) -> bool:
    poll = select.poll()
    poll.register(out.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
