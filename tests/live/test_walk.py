"""Up, again, down, up: the story of the two commands, and what the files of a cloud give away."""

from __future__ import annotations

import os
import re
import signal
import stat
import time

import psutil
import pytest

from deploy.local import envfiles
from tests.live.cloud import Cloud
from tests.machine import fair

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
SECRET_FILES = (
    "clouds.yaml",
    "openrc",
    "stillwater.env",
    "cloud.json",
    "env/*",
    "secrets/*",
    "redis/*/redis.conf",
)


@pytest.fixture(params=("fake_cloud", "cloud"))
def any_cloud(request: pytest.FixtureRequest) -> Cloud:
    """Either kind: the commands are the same."""
    return request.getfixturevalue(request.param)


def test_status_says_that_everything_is_up(any_cloud):
    page = any_cloud.status()
    assert page.returncode == 0, page.stdout + page.stderr
    for name in any_cloud.pids():
        assert re.search(rf"^{name} +\d+  up", page.stdout, re.MULTILINE), page.stdout


def test_a_second_up_changes_nothing_and_is_quick(any_cloud):
    before, began = any_cloud.pids(), time.monotonic()
    any_cloud.up()
    assert any_cloud.pids() == before
    assert time.monotonic() - began < fair(10)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["host1", "conductor-cell2", "scheduler", "api", "redis-cell1"])
def test_what_was_killed_is_started_again_and_nothing_else(fake_cloud, name):
    before = fake_cloud.pids()
    fake_cloud.kill(name, signal.SIGKILL)
    page = fake_cloud.status()
    assert page.returncode == 1
    assert re.search(rf"^{name} +-  DOWN", page.stdout, re.MULTILINE)

    fake_cloud.up()

    after = fake_cloud.pids()
    assert after.pop(name) not in (None, before.pop(name))
    assert after == before


@pytest.mark.chaos
def test_a_recycled_pid_is_not_mistaken_for_a_worker(fake_cloud):
    """The machine rebooted, say, and the number in the pidfile is some other process's now."""
    fake_cloud.kill("host2")
    fake_cloud.daemon("host2").pidfile.write_text(f"{os.getpid()}\n")
    assert fake_cloud.daemon("host2").pid() is None
    fake_cloud.up()
    assert fake_cloud.daemon("host2").pid() not in (None, os.getpid())


def test_down_leaves_no_process_and_up_brings_it_back(fake_cloud):
    fake_cloud.down()
    assert fake_cloud.leftovers() == {}
    assert set(fake_cloud.pids().values()) == {None}
    assert fake_cloud.status().returncode == 1
    assert "stopped" not in fake_cloud.down()  # nothing left to stop is fine

    fake_cloud.up()
    assert None not in fake_cloud.pids().values()
    assert fake_cloud.openstack("flavor", "list")


def test_a_host_knows_its_own_cell_and_nothing_else(any_cloud):
    state = any_cloud.state
    text = state.path("env", "host1.env").read_text()
    assert state.secret("redis-cell1") in text
    for secret in state.path("secrets").iterdir():
        if secret.name != "redis-cell1":
            assert secret.read_text().strip() not in text, secret.name
    for word in ("SECRET_KEY", "TOKEN_KEYS", "global.sqlite3", "cell0", "cell2", "STILLWATER_DATABASE_URL"):
        assert word not in text, word


def test_a_running_host_was_given_nothing_more_than_its_file(any_cloud):
    """celery multi executes itself anew, so what the file says is in the environment by then."""
    pairs = psutil.Process(any_cloud.daemon("host1").pid()).environ()
    file = any_cloud.state.path("env", "host1.env")
    ours = {name: value for name, value in pairs.items() if name.startswith("STILLWATER_")}
    assert ours == envfiles.read(file) | {"STILLWATER_ENV_FILE": str(file)}


def test_secrets_are_their_owners_only(any_cloud):
    assert stat.S_IMODE(any_cloud.directory.stat().st_mode) == 0o700
    files = [file for pattern in SECRET_FILES for file in any_cloud.directory.glob(pattern)]
    assert len(files) > 15
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_no_command_line_shows_a_secret(any_cloud):
    secrets = [file.read_text().strip() for file in any_cloud.state.path("secrets").iterdir()]
    for pid in any_cloud.leftovers():
        shown = " ".join(psutil.Process(pid).cmdline())
        assert not [secret for secret in secrets if secret in shown]


def test_another_driver_is_refused_in_one_sentence(fake_cloud):
    with pytest.raises(AssertionError, match="made with the fake driver"):
        fake_cloud.up("--driver", "libvirt")


def test_the_stock_client_is_let_in_as_member_and_as_administrator(any_cloud):
    assert any_cloud.openstack("token", "issue")["project_id"]
    assert {"demo", "admin"} <= {user["Name"] for user in any_cloud.openstack("user", "list", admin=True)}
