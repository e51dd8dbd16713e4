"""Pauses of `make chaos` begin, end by themselves, and end all at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.pauses import Pauses
from tests.live.cloud import eventually


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_a_pause_ends_by_itself(process):
    pauses = Pauses()
    assert pauses.begin("a", process.pid, 0.5)
    assert not pauses.begin("a", process.pid, 0.5)
    eventually("it goes on", lambda: not is_stopped(process), 20, 0.05)
    assert pauses.begin("a", process.pid, 0.0)


def test_all_pauses_end_at_once(process):
    pauses = Pauses()
    assert pauses.begin("a", process.pid, 3600)
    eventually("it is stopped", lambda: is_stopped(process), 20, 0.01)
    pauses.end_all()
    eventually("it goes on", lambda: not is_stopped(process), 20, 0.01)
    pauses.end_all()


def test_who_is_gone_is_not_paused(process):
    process.kill()
    process.wait()
    assert not Pauses().begin("a", process.pid, 1)
