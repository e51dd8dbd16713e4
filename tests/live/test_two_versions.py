"""An upgrade under way: services of two versions in one cell, and an action that only the newer one knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Api, ask
from tests.live.stage import Stage
from tests.upgrade import trees
from tests.upgrade.trees import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
SPAWNED, BLINKED = "spawned", ["paused", "unpaused"]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One cell's host and conductor, of this version."""
    with Cloud("fake") as cloud:
        yield Stage(cloud)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newer version's source tree."""
    return trees.newer(tmp_path_factory.mktemp("newer"))


@pytest.fixture(scope="module")
def api(stage: Stage, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The newer version's API, upgraded too early."""
    started = Api(stage.cloud, tmp_path_factory.mktemp("log") / "api.log", root=newer)
    yield started.wait_until_ready()
    started.end()


def manage(stage: Stage, tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A `manage.py` command of a version."""
    return subprocess.run(
        [sys.executable, "manage.py", *words], cwd=tree, env=stage.cloud._managing(), capture_output=True, text=True,
        timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def restart(stage: Stage, tree: Path, name: str) -> None:
    """Stop a worker, and start it as a version."""
    done = manage(stage, tree, "host", "restart", name)
    assert done.returncode == 0, done.stdout + done.stderr
    running = os.readlink(f"/proc/{stage.cloud.daemon(name).pid()}/cwd")
    assert Path(running) == tree


def blink(stage: Stage, api: Api, server_id: str) -> tuple[int, str]:
    """Ask for what only the newer version knows; status and error text."""
    token = stage.cloud.sdk(admin=True).auth_token
    answer = ask(api.port, f"/compute/v2.1/servers/{server_id}/action", "POST", {"blink": None}, X_Auth_Token=token)
    return answer.status, next(iter(answer.json.values()))["message"] if answer.text else ""


def checked(stage: Stage, tree: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """What `upgrade_check` of a version says: exit code, and its lines by their names."""
    done = manage(stage, tree, "upgrade_check", "--json")
    return done.returncode, {line["check"]: line for line in json.loads(done.stdout)}


def test_an_upgrade_from_one_end_to_the_other_and_one_step_back(stage, newer, api):
    (server,) = stage.boot(1, "host1")

    status, why = blink(stage, api, server)
    assert (status, "the conductors of its cell cannot do it before an upgrade" in why) == (409, True), why
    code, checks = checked(stage, newer)
    assert code == 1
    assert checks["conductors are upgraded"]["what to do"] == "manage.py host restart conductor-cell1 conductor-cell2"
    assert checks["hosts are upgraded"]["what to do"] == "manage.py host restart host1 host2"
    assert checks["APIs are upgraded"]["result"] == "to do", "the cloud's own"
    assert checks["databases are migrated"]["result"] == checks["operations are known"]["result"] == "ok"

    restart(stage, newer, "conductor-cell1")
    status, why = blink(stage, api, server)
    assert (status, "its host cannot do it before an upgrade" in why) == (409, True), why

    restart(stage, newer, "host1")
    assert blink(stage, api, server) == (202, "")
    stage.wait(server, "ACTIVE")
    assert stage.effects(server) == [SPAWNED, *BLINKED]

    # the host goes back to the older version while a request waits for it
    stage.stop("host1").ended(30)
    assert blink(stage, api, server) == (202, "")
    where = f"server_id = '{server}' AND name = 'blink' AND state = 'queued'"
    eventually("it waits for the host", lambda: stage.steps("cell1", "id", where), 30)
    restart(stage, ROOT, "host1")
    refused = eventually("refused", lambda: [one for one in stage.steps("cell1", "details", where) if one[0]], 60)
    assert "does not know Blink.blink" in refused[0][0]
    assert "step.unknown" in stage.cloud.log("host1")
    code, checks = checked(stage, ROOT)
    assert (code, checks["operations are known"]["result"]) == (2, "stops the upgrade")
    assert "Blink.blink" in checks["operations are known"]["what to do"]
    assert stage.effects(server) == [SPAWNED, *BLINKED]

    restart(stage, newer, "host1")
    stage.wait(server, "ACTIVE")
    assert stage.effects(server) == [SPAWNED, *BLINKED, *BLINKED]


def test_of_two_conductors_the_newer_one_does_what_the_older_does_not_know(stage, newer, api):
    restart(stage, newer, "conductor-cell1")
    restart(stage, newer, "host1")
    with stage.twin("conductor-cell1"):  # started by this version
        servers = stage.boot(6, "host1")
        assert [blink(stage, api, server) for server in servers] == [(202, "")] * 6
        for server in servers:
            stage.wait(server, "ACTIVE")
            assert stage.effects(server) == [SPAWNED, *BLINKED]
        assert "step.unknown" in stage.cloud.log("conductor-cell1-twin"), "no message reached the older one"
