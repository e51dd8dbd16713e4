"""A local cloud: how many hosts it has, what they are called, and what its commands say."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.polling import wait_until
from deploy.local import cells, envfiles, manage_commands, redis, workers
from deploy.local.down import clean, down
from deploy.local.output import Failed
from deploy.local.ports import next_free
from deploy.local.processes import stop
from deploy.local.seed import databases
from deploy.local.state import ROOT, StackState
from deploy.local.status import status
from deploy.local.up import UpOptions, decide


def test_a_cloud_of_an_older_version_keeps_its_two_hosts(tmp_path: Path):
    (tmp_path / "cloud.json").write_text(json.dumps({"driver": "fake", "slot": 3}))
    assert StackState(tmp_path).hosts == {"host1": "cell1", "host2": "cell2"}


def test_hosts_go_round_the_cells_and_each_has_a_worker(tmp_path: Path):
    state = StackState(tmp_path / "new")
    decide(state, UpOptions(driver="fake", port=1, redis_port=30000, hosts_per_cell=2))
    assert StackState(state.directory).hosts == {
        "host1": "cell1", "host2": "cell2", "host3": "cell1", "host4": "cell2",
    }  # fmt: skip
    names = [node.name for node in workers.nodes(state) if node.role == "host"]
    assert names == list(state.hosts)


def test_the_number_of_hosts_of_a_cloud_stays(tmp_path: Path):
    state = StackState(tmp_path / "new")
    decide(state, UpOptions(driver="fake", port=1, redis_port=30000, hosts_per_cell=2))
    with pytest.raises(Failed, match="2 host"):
        decide(state, UpOptions(hosts_per_cell=3))
    decide(state, UpOptions())
    assert len(state.hosts) == 4


WORKER = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[2]).write_text(str(pathlib.Path(sys.argv[3]).exists()))  # is its broker there?
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def cloud_with_redis(tmp_path: Path) -> Iterator[StackState]:
    """A state folder whose brokers run, and nothing else."""
    state = StackState(tmp_path / "c")
    decide(state, UpOptions(driver="fake", port=1, redis_port=next_free(31000)))
    redis.start(state)
    yield state
    stop([redis.daemon(state, domain) for domain in state.redis_domains], 5)


def process(*words: str) -> subprocess.Popen[str]:
    """It has come so far that it hears signals."""
    started = subprocess.Popen([sys.executable, "-c", WORKER, *words], stdout=subprocess.PIPE, text=True)
    assert started.stdout
    assert started.stdout.readline() == "ready\n"
    return started


def test_down_stops_a_host_that_was_started_by_hand_before_its_broker(cloud_with_redis, capsys):
    """It ended with "1 processes are still there", after Redis had gone."""
    state = cloud_with_redis
    pidfile, saw = state.pidfile("metal1"), state.path("saw")
    worker = process(f"--pidfile={pidfile}", str(saw), str(state.pidfile("redis-cell1")))
    pidfile.write_text(str(worker.pid))
    threading.Thread(target=worker.wait, daemon=True).start()  # a real one is no child of ours

    down(state, 20)

    said = capsys.readouterr().out
    assert "stopped workers started by hand: metal1" in said
    assert "no process of this cloud is left" in said
    assert (saw.read_text(), worker.wait(10), pidfile.exists()) == ("True", 0, False)


def test_down_names_the_one_process_it_does_not_know(cloud_with_redis, capsys):
    stranger = process(str(cloud_with_redis.path("x")), "", "")
    try:
        with pytest.raises(Failed, match=r"^1 process is still there$"):
            down(cloud_with_redis, 20)
        with pytest.raises(Failed, match=f"^a process of this cloud runs: {stranger.pid}$"):
            clean(cloud_with_redis)
    finally:
        stranger.kill()
        stranger.wait()
    assert str(stranger.pid) in capsys.readouterr().out


def test_status_into_head_says_no_more_than_head_reads(tmp_path: Path):
    """It ended with a traceback of BrokenPipeError."""
    reads, writes = os.pipe()
    os.close(reads)
    named = os.environ | {"STILLWATER_STATE": str(tmp_path)}
    words = [sys.executable, "-m", "deploy.local", "status"]
    ended = subprocess.run(words, cwd=ROOT, env=named, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackState]:
    """A cloud of which only the databases are there; cell1 has a host."""
    for name in ("DJANGO_SETTINGS_MODULE", *(name for name in os.environ if name.startswith("STILLWATER_"))):
        monkeypatch.delenv(name, raising=False)
    state = StackState(tmp_path / "new")
    decide(state, UpOptions(driver="fake", port=1, redis_port=30000))
    databases(state, envfiles.write(state))
    with contextlib.closing(sqlite3.connect(state.path("global.sqlite3"))) as database, database:
        row = ("host1", state.choices.cells["cell1"], "2026-01-01")
        database.execute("INSERT INTO cells_hostmapping (host, cell_id, created_at) VALUES (?, ?, ?)", row)
    yield state
    manage_commands._clients.pop(state.directory).end()


def test_up_and_status_name_the_database_that_is_away(seeded: StackState, capsys: pytest.CaptureFixture[str]):
    """`up` made an empty one and said that everything ran already, `status` said "all up" with exit code 0."""
    file, elsewhere = seeded.path("cell1.sqlite3"), seeded.path("elsewhere")
    file.rename(elsewhere)
    databases(seeded, envfiles.write(seeded))
    assert not file.exists()
    assert [cell.name for cell in cells.away(seeded)] == ["cell1"]
    assert status(seeded) == 1
    said = f"the database of cell1 does not answer: missing: there is no such file (sqlite:///{file})."
    assert said in capsys.readouterr().out
    elsewhere.rename(file)
    assert wait_until(lambda: not cells.away(seeded), 60)
    status(seeded)
    assert "does not answer" not in capsys.readouterr().out


def test_every_worker_has_the_cell_of_its_record(tmp_path: Path):
    state = StackState(tmp_path)
    found = {node.name: workers.cell_of(state, node) for node in workers.nodes(state)}
    conductors = {"conductor-cell1": "cell1", "conductor-cell2": "cell2"}
    assert found == {"scheduler": "cell0", "host1": "cell1", "host2": "cell2"} | conductors
