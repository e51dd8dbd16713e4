"""What a test may expect of the machine it runs on."""

from __future__ import annotations

import os


def fair(seconds: float) -> float:
    """What takes so long at most when nothing else goes on: as much longer as there is more to do than cores.

    How fast things are is measured in bench/; tests only tell "at once" from "after a time-out".
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
