"""What a test may expect of the machine it runs on."""

from __future__ import annotations

import os

MOST = 4.0  # times as long; a wait is to end before its test does


def fair(seconds: float) -> float:
    """What takes so long at most when nothing else goes on: as much longer as there is more to do than cores.

    How fast things are is measured in bench/; tests only tell "at once" from "after a time-out".
    """
    return seconds * min(MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
