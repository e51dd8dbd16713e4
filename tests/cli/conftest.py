"""A shell in which `stillwater` is typed, in front of a cloud driven by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import down_cell
from tests.byhand import Cloud
from tests.conftest import Api, client
from tests.identity.fixtures import PASSWORD, People, people, static_folder

__all__ = ["down_cell", "people", "static_folder"]
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "cloud.cli"]
SECONDS = 60


class Shell:
    """Runs the real command in a process of its own."""

    def __init__(self, url: str, home: Path, cloud: Cloud) -> None:
        self.cloud = cloud
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "NO_PROXY": "*"}
        lines = "".join(
            f"  {user}:\n    region_name: RegionOne\n    auth: {{auth_url: {url}/identity/v3, username: {user}, "
            f"password: {PASSWORD}, project_name: {user}, user_domain_id: default, project_domain_id: default}}\n"
            for user in ("demo", "admin")
        )
        (home / ".config/openstack").mkdir(parents=True)
        (home / ".config/openstack/clouds.yaml").write_text(f"clouds:\n{lines}")

    def begin(
        self, *words: str, user: str = "demo", stderr: int = subprocess.PIPE, **variables: str
    ) -> subprocess.Popen[str]:
        """Start it and let it run."""
        return subprocess.Popen(
            [*COMMAND, *words], cwd=ROOT, env=self.environment | {"OS_CLOUD": user} | variables, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Let the cloud work until the command is over."""
        deadline = time.monotonic() + SECONDS
        while process.poll() is None:
            assert time.monotonic() < deadline, "it does not come to an end"
            self.cloud.work()
            time.sleep(0.05)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def __call__(self, *words: str, user: str = "demo", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.end(self.begin(*words, user=user, **variables))

    def json(self, *words: str, user: str = "demo") -> Any:
        """What it prints for programs, after success."""
        done = self(*words, "-f", "json", user=user)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def shell(cloud: Cloud, people: People, live_server: Any, tmp_path: Path) -> Shell:
    return Shell(live_server.url, tmp_path, cloud)


@pytest.fixture
def demo(shell: Shell, people: People) -> Api:
    """The same user, without the command."""
    return client("member", project=people.projects["demo"].id, user=people.users["demo"].id)


@pytest.fixture
def boot(cloud: Cloud, demo: Api) -> Callable[..., str]:
    """`boot("web1")`: the id of a running server of demo's."""
    return lambda name, **more: cloud.boot(demo, name, **more)
