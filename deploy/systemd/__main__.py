"""python -m deploy.systemd [--env-file FILE] [--output /etc/systemd/system]: write the units with stop timeouts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from deploy import stop_timeouts

FOLDER = Path(__file__).resolve().parent


def fill(text: str, seconds: int | None) -> str:
    """Return the unit with a stop timeout of `seconds` (None: infinity).

    STILLWATER_SUPERVISOR_TIMEOUT tells the process the same number, and the process checks it.
    """
    wait = "infinity" if seconds is None else str(seconds)
    if stop_timeouts.SHUTDOWN in text:
        words = f" --timeout {seconds - stop_timeouts.GUESTS_MARGIN}" if seconds else ""
        text = re.sub(r"^(ExecStop=.* --force).*$", rf"\1{words}", text, flags=re.MULTILINE)
    text = re.sub(r"^TimeoutStopSec=.*$", f"TimeoutStopSec={wait}", text, flags=re.MULTILINE)
    return re.sub(r"STILLWATER_SUPERVISOR_TIMEOUT=\S+", f"STILLWATER_SUPERVISOR_TIMEOUT={seconds or 0}", text)


if __name__ == "__main__":
    sys.exit(stop_timeouts.main(FOLDER, "*.s[eo][rc]*", fill, sys.argv[1:]))
