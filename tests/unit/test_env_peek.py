"""A value of the env file for who does not take it into the environment."""

from __future__ import annotations

import os

from cloud import env


def test_the_env_file_says_how_many_processes_and_leaves_no_trace(tmp_path, monkeypatch):
    """Seen in CI: gunicorn's first process knew of no env file, and SIGHUP is to read it anew."""
    file = tmp_path / "api.env"
    monkeypatch.setenv("STILLWATER_ENV_FILE", str(file))
    before = dict(os.environ)
    for count in (3, 5):
        file.write_text(f"STILLWATER_API_PROCESSES={count}\n")
        assert env.peek("STILLWATER_API_PROCESSES") == count
    assert dict(os.environ) == before
    monkeypatch.setenv("STILLWATER_API_PROCESSES", "7")
    assert env.peek("STILLWATER_API_PROCESSES") == 7
