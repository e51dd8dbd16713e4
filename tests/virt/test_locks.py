"""One guest is shut down by one at a time: threads, processes, and those that died."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compute.virt.guest_locks import GuestLocks
from tests.machine import fair

PROGRAM = """
import sys, time
from pathlib import Path
from compute.virt.guest_locks import GuestLocks
with GuestLocks(Path(sys.argv[1])).alone("a"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("where", ["memory", "files"])
def test_many_want_it_and_one_has_it(where: str, tmp_path: Path):
    locks = [GuestLocks(tmp_path / "locks" if where == "files" else None)] * 2
    if where == "files":
        locks[1] = GuestLocks(tmp_path / "locks")
    inside, most = [0], [0]

    def work(mine: GuestLocks) -> None:
        for _ in range(20):
            with mine.alone("a"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0005)
                inside[0] -= 1

    threads = [threading.Thread(target=work, args=(mine,)) for mine in locks * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert not list(tmp_path.rglob("locks/*")), "no file is left"


def test_guests_do_not_wait_for_each_other(tmp_path: Path):
    with GuestLocks(tmp_path).alone("a"), GuestLocks(tmp_path).alone("b/../c"):
        assert len(list(tmp_path.iterdir())) == 2


def test_what_a_process_held_is_free_when_it_is_killed(tmp_path: Path):
    locks = GuestLocks(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as other:
        assert other.stdout.readline() == "held\n"
        begun = time.monotonic()
        with locks.alone("a", patience=0.3):  # it hangs: a deadline counts more
            assert time.monotonic() - begun >= 0.3
        assert (tmp_path / "a").exists(), "it is still his"
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        begun = time.monotonic()
        with locks.alone("a"):
            assert time.monotonic() - begun < fair(5)
    assert not list(tmp_path.iterdir())


def test_where_no_file_can_be_made_it_goes_on_without(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with GuestLocks(tmp_path / "file").alone("a"):
        assert (tmp_path / "file").is_file()
