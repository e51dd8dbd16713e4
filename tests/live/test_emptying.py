"""Servers leave a host before it drains, with real workers, while whoever sees to it is killed."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from deploy.local.state import ROOT
from tests.live import books, crossings
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.live.test_host_commands import command, ended, environment, host, page, row, terminal

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
SERVERS, STOPPED, PARALLEL = 12, 3, 4
TRAVEL, LONG = "1", "5"  # seconds a guest is on its way


@pytest.fixture(scope="module")
def theatre() -> Iterator[Stage]:
    """host1, host3 and host5 in one cell."""
    with Cloud("fake", hosts_per_cell=3) as cloud:
        yield Stage(cloud)


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """Everything runs and takes work; afterwards it is empty, and the books agree."""
    theatre.cloud.up()
    yield theatre
    theatre.cloud.up()
    assert host(theatre.cloud, "undrain", "host1").returncode == 0
    theatre.empty()


def homes(stage: Stage) -> dict[str, str]:
    """Where each server is on record."""
    return {row.uuid: row.host for row in books.rows(stage.cloud)}


def test_twelve_servers_leave_and_come_back_whoever_is_killed(stage):
    cloud = stage.cloud
    servers = stage.boot(SERVERS, "host1", stage.image(migrate_out_delay=TRAVEL), name="emptying")
    stopped = servers[:STOPPED]
    for uuid in stopped:
        assert stage.ask(uuid, {"os-stop": None}) == 202
    for uuid in stopped:
        stage.wait(uuid, "SHUTOFF")
    forecast = host(cloud, "drain", "host1", "--migrate", "--dry-run").stdout
    assert "12 servers would move away (9 live, 3 cold). There is room:" in forecast, forecast

    with terminal(cloud, "drain", "host1", "--migrate", "--reason", "new kernel", "-f", "jsonl") as process:
        eventually("some are on their way", lambda: len(crossings.of(cloud)) >= PARALLEL, pause=0.05)
        process.kill()
        cloud.kill("conductor-cell1", signal.SIGKILL)
        assert row(cloud, "host1")["state"] == "emptying"
        cloud.up()
    with terminal(cloud, "drain", "host1") as follower:
        out, code = ended(follower)

    assert (code, "12 of 12 servers moved away" in out) == (0, True), out
    assert books.settled(cloud)
    assert set(homes(stage).values()) <= {"host3", "host5"}
    assert set(homes(stage)) == set(servers)
    moves = crossings.of(cloud)
    assert crossings.most_at_once(moves) == PARALLEL
    for uuid in servers:
        assert stage.effects(uuid).count("spawned") == 1
        assert stage.show(uuid)["status"] == ("SHUTOFF" if uuid in stopped else "ACTIVE")
    books.check(cloud)
    assert (row(cloud, "host1")["state"], page(cloud, "host1")["moves"]["away"]) == ("drained", SERVERS)

    back = host(cloud, "undrain", "host1", "--return", "--parallel", "6")
    assert (back.returncode, back.stdout.splitlines()[-1]) == (0, "host1 takes work."), back.stdout + back.stderr
    assert set(homes(stage).values()) == {"host1"}
    assert crossings.most_at_once(crossings.of(cloud)[len(moves):]) <= 6
    books.settled(cloud)
    books.check(cloud)


def test_a_host_that_is_killed_and_comes_back_is_emptied_and_ends(stage):
    cloud = stage.cloud
    servers = stage.boot(4, "host1", stage.image(migrate_out_delay=LONG), name="emptying")
    began = len(crossings.of(cloud))
    wanted = {"stillwater:drain": {"migrate": {"parallel": 2}, "exit": True}}
    assert stage.call("PUT", f"/os-services/{stage.service('host1')['id']}", wanted).status_code == 200
    eventually("some are on their way", lambda: len(crossings.of(cloud)) > began, pause=0.05)
    cloud.kill("host1", signal.SIGKILL)
    assert host(cloud, "start", "host1").returncode == 0
    eventually("it ends", lambda: cloud.daemon("host1").pid() is None, 120)
    assert set(homes(stage)) == set(servers)
    assert "host1" not in homes(stage).values()
    books.settled(cloud)
    books.check(cloud)


def test_at_its_deadline_a_host_drains_and_says_who_is_still_there(stage):
    (blocker,) = stage.boot(1, "host1", name="emptying")
    assert stage.ask(blocker, {"suspend": None}) == 202
    stage.wait(blocker, "SUSPENDED")
    late = host(stage.cloud, "drain", "host1", "--migrate", "--timeout", "2")
    assert (late.returncode, "0 of 1 server moved away" in late.stdout) == (2, True), late.stdout
    again = host(stage.cloud, "drain", "host1")
    assert (again.returncode, "1 of its servers are still there" in again.stdout) == (2, True), again.stdout
    stay = host(stage.cloud, "drain", "host1", "--no-migrate", "--timeout", "0")
    assert (stay.returncode, "host1 is drained" in stay.stdout) == (0, True), stay.stdout
    refused = host(stage.cloud, "drain", "conductor-cell1", "--migrate")
    assert (refused.returncode, "only compute hosts have servers" in refused.stderr) == (1, True)


def test_ctrl_c_asks_and_takes_the_drain_back(stage):
    cloud = stage.cloud
    (blocker,) = stage.boot(1, "host1", name="emptying")
    assert stage.ask(blocker, {"suspend": None}) == 202
    stage.wait(blocker, "SUSPENDED")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("drain", "host1", "--migrate"), cwd=ROOT, env=environment(cloud) | {"COLUMNS": "200", "LINES": "50"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        read(ours, "it is suspended: resume it")
        process.send_signal(signal.SIGINT)
        read(ours, "[y/N]")
        os.write(ours, b"y\n")
        assert process.wait(60) == 6
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)
    assert row(cloud, "host1")["state"] == "up"
    assert stage.ask(blocker, {"resume": None}) == 202
    stage.wait(blocker, "ACTIVE")


def read(terminal: int, wanted: str, seconds: float = 60) -> str:
    """What a terminal shows, until it shows that."""
    shown, limit = "", time.monotonic() + seconds
    while wanted not in shown:
        assert time.monotonic() < limit, shown
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
