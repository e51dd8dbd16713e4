"""Settings that would be no use stop the process with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cloud import env


@pytest.mark.parametrize(("name", "least"), [("TIMEOUT", 0), ("RETRY_INTERVAL", 1)])
def test_a_grace_period_has_bounds(name, least, monkeypatch, capsys):
    variable = f"STILLWATER_SHUTDOWN_{name}"
    monkeypatch.setenv(variable, str(least))
    assert env.get(variable) == least
    monkeypatch.setenv(variable, str(least - 1))
    with pytest.raises(SystemExit) as stopped:
        env.get(variable)
    assert stopped.value.code == os.EX_CONFIG
    assert capsys.readouterr().err.startswith(f"stillwater: {variable}: {least - 1} is less than {least}. Seconds ")
    monkeypatch.delenv(variable)
    assert env.get(variable) == env.VARIABLES[variable].default


def test_a_power_truth_nobody_knows_stops_the_process():
    told = os.environ | {"STILLWATER_POWER_TRUTH": "sometimes"}
    command = [sys.executable, "-c", "import cloud.settings"]
    done = subprocess.run(command, cwd=env.ROOT, env=told, capture_output=True, text=True, timeout=60)
    assert done.returncode == os.EX_CONFIG
    assert done.stderr == (
        "stillwater: STILLWATER_POWER_TRUTH is 'sometimes'. Use one of hypervisor, database, nova, record-only.\n"
    )
