"""python -m deploy.kubernetes [--env-file FILE] [--output FOLDER]: manifests whose grace periods fit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from deploy import stop_timeouts

FOLDER = Path(__file__).resolve().parent
FOR_EVER = 30 * 86400  # Kubernetes knows no endless grace period


def fill(text: str, seconds: int | None) -> str:
    """A manifest that gives its process that long. The grace period begins with the preStop hook, not after it."""
    wait = seconds or FOR_EVER
    before = sum(int(found) for found in re.findall(r'"sleep", "(\d+)"', text))
    text = re.sub(r"(terminationGracePeriodSeconds:) \d+", lambda line: f"{line[1]} {wait + before}", text)
    told = r'(STILLWATER_SUPERVISOR_TIMEOUT\s+value:) "\d+"'
    return re.sub(told, lambda line: f'{line[1]} "{wait}"', text)


if __name__ == "__main__":
    sys.exit(stop_timeouts.main(FOLDER, "*.yaml", fill, sys.argv[1:]))
