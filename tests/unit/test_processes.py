"""Which process is meant by a pidfile, and which by its command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloud.processes import Daemon, gone
from tasks import worker_process

SLEEPS = "import sys, time; time.sleep(60)"


@contextmanager
def sleeper(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with such a command line."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPS, *words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_starts_slowly_is_not_said_to_have_ended(tmp_path: Path):
    """Seen on a machine with too much to do: celery took more than 15 s to its pidfile."""
    one = worker_process.WorkerNode("host9", tmp_path / "host9.env", tmp_path, tmp_path)
    assert not one.daemon.is_there()
    with sleeper(one.daemon.needle) as process:
        assert (one.daemon.pid(), one.daemon.is_there()) == (None, True)
        one.daemon.pidfile.write_text(f"{process.pid}\n")
        assert (one.daemon.pid(), one.daemon.is_there()) == (process.pid, True)
    assert gone([process.pid], 5)
    assert (one.daemon.pid(), one.daemon.is_there()) == (None, False)


def test_a_stranger_with_the_number_of_a_dead_one_is_not_it(tmp_path: Path):
    with sleeper("--pidfile=/elsewhere.pid") as process:
        daemon = Daemon("host9", tmp_path / "host9.pid", f"--pidfile={tmp_path / 'host9.pid'}", tmp_path / "log")
        daemon.pidfile.write_text(f"{process.pid}\n")
        assert (daemon.pid(), daemon.is_there()) == (None, False)
