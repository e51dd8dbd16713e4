"""A bounded sample of `make simulate`, and the property it relies on: a seed gives the same run every time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = "1-40"

pytestmark = pytest.mark.timeout(600)


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation in a process of its own, because it patches time, databases and threads."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STILLWATER_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words], cwd=ROOT, env=env, capture_output=True, text=True
    )


def test_whatever_goes_wrong_everything_ends_once_where_the_record_says():
    played = simulate("--seeds", SEEDS)
    assert played.returncode == 0, played.stdout + played.stderr
    last = played.stdout.splitlines()[-1]
    assert re.fullmatch(r"40 seeds, \d+ operations, 0 violations, \d+ seeds/hour", last)


def test_a_seed_is_the_same_story_every_time():
    first, again = (simulate("--replay", "7", "--events", "500") for _ in range(2))
    assert first.stdout == again.stdout, first.stderr
    assert "trace" in first.stdout.splitlines()[-1]
