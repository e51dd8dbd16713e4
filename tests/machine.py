"""What a test may expect of the machine it runs on."""

from __future__ import annotations

import os

MOST = 4.0  # times as long; a wait is to end before its test does
SHORT = 20.0  # seconds that any bound may grow to


def fair(seconds: float) -> float:
    """What takes so long at most when nothing else goes on; more when there is more to do than cores.

    How fast things are is measured in bench/; tests only tell "at once" from "after a time-out". A chain of short turns
    of several processes waits for a core at each turn, so the bound grows twice as fast as the load.
    """
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return min(seconds * (2 * busy - 1), max(MOST * seconds, SHORT))
