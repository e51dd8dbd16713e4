"""The systemd units, which are complete files in deploy/systemd, with the stop timeouts of a site filled in."""

from __future__ import annotations

import re

from cloud.env import ROOT
from tasks import stop_timeouts

FOLDER = ROOT / "deploy/systemd"  # in a clone, and beside our packages where a wheel is installed
PATTERN = "*.s[eo][rc]*"  # services and sockets


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
