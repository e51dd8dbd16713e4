"""python -m deploy.kubernetes [--env-file FILE] [--output FOLDER]: write the manifests with their grace periods."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tasks import stop_timeouts

FOLDER = Path(__file__).resolve().parent
FOR_EVER = 30 * 86400  # Kubernetes has no unlimited grace period


def fill(text: str, seconds: int | None) -> str:
    """Return the manifest with a termination grace period of `seconds` (None: unlimited).

    The sleep of the preStop hook is added, because the grace period starts with the hook, not after it.
    """
    wait = seconds or FOR_EVER
    before = sum(int(found) for found in re.findall(r'"sleep", "(\d+)"', text))
    text = re.sub(r"(terminationGracePeriodSeconds:) \d+", lambda line: f"{line[1]} {wait + before}", text)
    told = r'(STILLWATER_SUPERVISOR_TIMEOUT\s+value:) "\d+"'
    return re.sub(told, lambda line: f'{line[1]} "{wait}"', text)


if __name__ == "__main__":
    sys.exit(stop_timeouts.main(FOLDER, "*.yaml", fill, sys.argv[1:]))
