"""Processes that `make chaos` starts again, with a wrong clock or beside the first one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.records import righted
from tests.chaos.twins import Started

CLOCKS = """
import json, threading, time
began = time.perf_counter()
time.sleep(0.1)
threading.Event().wait(0.1)
print(json.dumps({"wall": time.time(), "monotonic": time.monotonic(), "waited": time.perf_counter() - began}))
"""


@pytest.mark.parametrize("hours", [-24, -6, 0, 6, 12, 24])
def test_a_process_with_a_wrong_clock_has_right_monotonic_ones_and_waits_as_long_as_it_should(hours):
    started = Started((sys.executable, "-c", CLOCKS), dict(os.environ), ".").with_clock(hours)
    done = subprocess.run(started.argv, env=started.environment, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(done.stdout)
    assert said["wall"] - time.time() == pytest.approx(hours * 3600, abs=30)
    assert said["monotonic"] - time.monotonic() == pytest.approx(0, abs=30)
    assert 0.2 <= said["waited"] < 30
    assert righted(said["wall"]) - time.time() == pytest.approx(0, abs=30)


def test_a_second_one_has_files_of_its_own():
    first = Started(("python", "-m", "celery", "--pidfile=/run/h.pid", "--logfile=/log/h.log", "-n", "h@x"), {}, "/")
    second = first.beside(Path("/twins"))
    assert second.argv == ("python", "-m", "celery", "--pidfile=/twins/h.pid", "--logfile=/twins/h.log", "-n", "h@x")
