"""Named moments at which a test may have this process killed, as a power cut would: SIGKILL, no last words.

Armed by STILLWATER_KILL_AT, the name of a file that holds a point's name, or `point:step` for that step only.
Reaching the point takes the file away first, so a process dies of it once. Unset, as in production, a point costs
one comparison.

Or held there, so that somebody else may be killed meanwhile: STILLWATER_HOLD_AT is the name of a folder. Whoever works
for a server there is a file of, and comes to the `point:step` in it, says so in `<server>.held` and waits until the
file is gone.
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
    """Die here, or wait here, if that is what the test wants."""
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
