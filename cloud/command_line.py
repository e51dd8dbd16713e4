"""What a process was started for: commands of ours show no pages, and start a third faster without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloud import env

APPS = ("cells", "compute", "tasks", "cloud/identity", "cloud/images")


def is_ours(argv: Sequence[str]) -> bool:
    """Whether it is `manage.py` with a command of ours, and not one of Django's (check, collectstatic, shell …)."""
    if len(argv) < 2 or Path(argv[0]).name != "manage.py":
        return False
    return any((env.ROOT / app / "management/commands" / f"{argv[1]}.py").is_file() for app in APPS)
