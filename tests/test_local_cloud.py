"""A local cloud: how many hosts it has, what they are called, and what its commands say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import workers
from deploy.local.progress import Failed
from deploy.local.state import ROOT, State
from deploy.local.up import Wishes, decide


def test_a_cloud_of_an_older_version_keeps_its_two_hosts(tmp_path: Path):
    (tmp_path / "cloud.json").write_text(json.dumps({"driver": "fake", "slot": 3}))
    assert State(tmp_path).hosts == {"host1": "cell1", "host2": "cell2"}


def test_hosts_go_round_the_cells_and_each_has_a_worker(tmp_path: Path):
    state = State(tmp_path / "new")
    decide(state, Wishes(driver="fake", port=1, redis_port=30000, hosts_per_cell=2))
    assert State(state.directory).hosts == {
        "host1": "cell1", "host2": "cell2", "host3": "cell1", "host4": "cell2",
    }  # fmt: skip
    names = [node.name for node in workers.nodes(state) if node.role == "host"]
    assert names == list(state.hosts)


def test_the_number_of_hosts_of_a_cloud_stays(tmp_path: Path):
    state = State(tmp_path / "new")
    decide(state, Wishes(driver="fake", port=1, redis_port=30000, hosts_per_cell=2))
    with pytest.raises(Failed, match="2 host"):
        decide(state, Wishes(hosts_per_cell=3))
    decide(state, Wishes())
    assert len(state.hosts) == 4


def test_status_into_head_says_no_more_than_head_reads(tmp_path: Path):
    """It ended with a traceback of BrokenPipeError."""
    reads, writes = os.pipe()
    os.close(reads)
    named = os.environ | {"STILLWATER_STATE": str(tmp_path)}
    words = [sys.executable, "-m", "deploy.local", "status"]
    ended = subprocess.run(words, cwd=ROOT, env=named, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writes)
    assert (ended.returncode, ended.stderr) == (1, "")
