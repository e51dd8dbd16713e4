"""Named moments at which a test may have this process killed, as a power cut would: SIGKILL, no last words.

Armed by STILLWATER_KILL_AT, the name of a file that holds a point's name, or `point:step` for that step only.
Reaching the point takes the file away first, so a process dies of it once. Unset, as in production, a point costs
one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cloud import env

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


def reached(point: str, step: str = "") -> None:
    """Die here if that is what the test wants."""
    armed = env.get("STILLWATER_KILL_AT")
    if not armed:
        return
    file = Path(armed)
    try:
        if file.read_text().strip() not in (point, f"{point}:{step}"):
            return
        file.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
