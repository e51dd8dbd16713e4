"""`stillwater` and real processes: guests that obey late or never, a terminal that counts down, an API that goes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local import first_server
from deploy.local.state import ROOT
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
COMMAND = str(ROOT / ".venv/bin/stillwater")
OBEYS_AFTER = 4


class Typist:
    """Types `stillwater`, from a folder that has nothing to do with it."""

    def __init__(self, cloud: Cloud) -> None:
        more = {"OS_CLOUD": "stillwater-admin", "TERM": "xterm"}
        self.environment = first_server.client_environment(cloud.state) | more
        self.folder = cloud.directory

    def begin(self, *words: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, "server", *words], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(*words)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def json(self, *words: str) -> Any:
        done = self(*words, "-f", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stage(fake_cloud: Cloud) -> Stage:
    return Stage(fake_cloud)


@pytest.fixture(scope="module")
def typed(fake_cloud: Cloud) -> Typist:
    return Typist(fake_cloud)


@pytest.fixture
def guests(stage: Stage) -> Iterator[dict[str, str]]:
    """Servers by how they take a shutdown; gone afterwards."""
    images = {"late": stage.image(shutdown_delay=str(OBEYS_AFTER)), "deaf": stage.image(shutdown_ignore="1")}
    ids = {how: stage.order(image, name=f"cli-{how}") for how, image in images.items()}
    for uuid in ids.values():
        stage.wait(uuid, "ACTIVE")
    yield ids
    for uuid in ids.values():
        stage.call("DELETE", f"/servers/{uuid}?shutdown_type=HARD")
        stage.wait(uuid, "DELETED")


def test_one_obeys_and_one_is_forced_and_both_are_told(typed, guests):
    done = typed("stop", "cli-late", "cli-deaf", "--shutdown-timeout", "7", "--wait")
    assert done.returncode == 0, done.stderr
    late, deaf = done.stdout.splitlines()
    assert re.fullmatch(r"cli-late: stopped in \d+\.\d s: guest shut down in [45]\.\d s, 1 signal \(acpi\)", late)
    assert re.fullmatch(r"cli-deaf: stopped in \d+\.\d s: forced off after 7 s, 1 signal \(acpi\)", deaf)
    assert re.search(r"^cli-deaf: guest is shutting down, [4-7] s left, 1 signal \(acpi\)$", done.stderr, re.MULTILINE)


def test_on_a_terminal_the_seconds_count_down(typed, guests):
    ours, theirs = pty.openpty()
    process = typed.begin("stop", "cli-late", "--shutdown-timeout", "30", "--wait", "-f", "json", stderr=theirs)
    os.close(theirs)
    shown = _read(ours)
    out, _ = process.communicate(timeout=60)
    left = [int(seconds) for seconds in re.findall(r"shutting down, (\d+) s left, 1 signal", shown)]
    assert process.returncode == 0
    assert len(set(left)) >= 3, shown  # also between two looks
    assert left == sorted(left, reverse=True)
    [row] = json.loads(out)
    assert (row["name"], row["result"], row["status"]) == ("cli-late", "done", "SHUTOFF")
    assert row["outcome"].startswith(("guest shut down in 4.", "guest shut down in 5."))


def test_hard_does_not_ask_the_guest(typed, guests):
    [row] = typed.json("stop", "cli-deaf", "--hard-shutdown", "--wait")
    assert row["outcome"] == "forced off at once"
    assert row["seconds"] < 10


def test_delete_asks_the_guest_when_it_is_told_to(typed, guests, stage):
    [row] = typed.json("delete", "cli-late", "--soft-shutdown", "--wait")
    assert (row["result"], row["seconds"] >= OBEYS_AFTER) == ("done", True)
    assert stage.show(guests["late"]) == {}


def test_the_api_goes_and_comes_and_the_wait_goes_on(typed, guests, fake_cloud):
    waiting = typed.begin("stop", "cli-deaf", "--shutdown-timeout", "8", "--wait", "-f", "json")
    line = waiting.stderr.readline()
    assert line.startswith("cli-deaf: "), line
    fake_cloud.kill("api", signal.SIGKILL)
    eventually("it says so", lambda: "still trying" in waiting.stderr.readline(), 30, 0)
    fake_cloud.up()
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    [row] = json.loads(out)
    assert (row["result"], row["status"]) == ("done", "SHUTOFF")
    assert row["outcome"] == "forced off after 8 s, 1 signal (acpi)"


def _read(terminal: int) -> str:
    """Everything that is shown until the other end is closed."""
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # Linux: the other end is closed
            break
    os.close(terminal)
    return shown.decode(errors="replace")
