"""Failpoints: named points at which a test kills or holds this process.

STILLWATER_KILL_AT names a file that holds the name of a point, or `point:step` for that step only. A process that
reaches the point removes the file first, so that it dies once, and kills itself by SIGKILL, as a power cut would.

STILLWATER_HOLD_AT names a folder, to kill another process meanwhile. A process that reaches the `point:step` in the
file `<server>` creates `<server>.held` and waits until the file is removed.

Unset, as in production, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from cloud import env

HELD = ".held"
LOOK_EVERY = 0.05
POINTS = {
    "submit.committed": "API: the action is recorded, its message not yet sent",
    "place.leased": "scheduler: holds the build request, has done nothing",
    "place.named": "scheduler: the cell is named on the global side, nothing is in the cell",
    "place.recorded": "scheduler: the server is in its cell, the build request is still there",
    "step.received": "host, conductor: the message is here, the step not claimed",
    "step.claimed": "host, conductor: the step is claimed, nothing is done",
    "step.worked": "host, conductor: the work is done, nothing is recorded",
    "step.committed": "host, conductor: the step is closed and the next one open, its message not yet sent",
    "undo.begun": "host, conductor: an undo step is claimed, nothing is undone",
    "undo.worked": "host, conductor: something is undone, and not recorded",
    "recovery.begun": "host, conductor: a new life is about to lead out what its last one left",
}


def reached(point: str, step: str = "", server: str = "") -> None:
    """Kill or hold this process here, if the test asks for it."""
    held, armed = env.get("STILLWATER_HOLD_AT"), env.get("STILLWATER_KILL_AT")
    if held and server:
        with suppress(FileNotFoundError):
            _wait(Path(held) / server, f"{point}:{step}")
    if armed:
        with suppress(FileNotFoundError):
            _die(Path(armed), (point, f"{point}:{step}"))


def _die(file: Path, here: tuple[str, str]) -> None:
    if file.read_text().strip() in here:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _wait(file: Path, here: str) -> None:
    if file.read_text().strip() != here:
        return
    file.with_suffix(HELD).touch()
    never = threading.Event()
    while file.exists():
        never.wait(LOOK_EVERY)
