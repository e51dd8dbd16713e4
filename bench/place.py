"""A fresh state folder for the measured API, with Django set up for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "a" * 32


def prepare(**more: str) -> Path:
    """Create a state folder, set its environment variables and set up Django. Call it once in a process."""
    state = Path(tempfile.mkdtemp(prefix="stillwater-bench-"))
    (state / "static").mkdir()
    os.environ.update(
        STILLWATER_STATE=str(state), STILLWATER_ROLE="api", STILLWATER_SECRET_KEY="bench",
        STILLWATER_TOKEN_KEYS="ZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmY=", STILLWATER_LOG_LEVEL="WARNING",
        STILLWATER_CELL_TIMEOUT="30", DJANGO_SETTINGS_MODULE="cloud.settings",
    )  # fmt: skip
    os.environ.update(more)
    django.setup()
    return state
