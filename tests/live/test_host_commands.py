"""manage.py host on a real cloud: every verb, every exit code, and two terminals at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cloud.processes import gone
from compute.virt.fake.driver import FakeDriver
from deploy.local.state import ROOT
from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.independent, pytest.mark.timeout(400)]
SLOW = 300  # seconds; nobody waits so long: see `give_in`


@pytest.fixture(scope="module")
def slow_cloud() -> Iterator[Cloud]:
    """Two hosts whose guests do not hear that they are to stop."""
    deaf = {"STILLWATER_FAKE_FAULTS": "shutdown.ignore=1", "STILLWATER_SHUTDOWN_TIMEOUT": str(SLOW)}
    cloud = Cloud("fake", **deaf)
    try:
        cloud.up()
        boot_one_on_each_host(cloud)
        yield cloud
    finally:
        cloud.end()


@pytest.fixture
def cloud(slow_cloud: Cloud) -> Iterator[Cloud]:
    """Everything runs and takes work before and after; nothing is in progress."""
    yield slow_cloud
    slow_cloud.up()
    for name in ("host1", "host2"):
        give_in(slow_cloud, name)
    ended = host(slow_cloud, "undrain", "host1", "host2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    eventually("nothing in progress", lambda: not busy(slow_cloud))


# -- draining


def test_a_drain_is_followed_from_two_terminals_and_ends_with_the_last_operation(cloud):
    server = stop_slowly(cloud, "host1")
    forecast = host(cloud, "drain", "host1", "--dry-run", "-f", "json")
    [operation] = json.loads(forecast.stdout)["hosts"][0]["operations"]
    assert (forecast.returncode, operation["server"], operation["step"]) == (0, server, "power_off")
    assert 0 < operation["ends_within"] <= SLOW
    assert row(cloud, "host1")["wanted"] == "work"

    with (
        terminal(cloud, "drain", "host1", "--reason", "new disk") as first,
        terminal(cloud, "drain", "host1", "-f", "jsonl") as second,
    ):
        eventually("it drains", lambda: "host1 draining" in said(first))
        eventually("it drains here too", lambda: re.search(r'"state": ?"draining"', said(second)))
        give_in(cloud, "host1")
        out, code = ended(first)
        documents, second_code = ended(second)

    assert (code, second_code) == (0, 0)
    assert re.search(rf"host1: stop of {server} is \w+: .*, ends within \d+ min \d+ s", out), out
    assert re.search(r"host1 is drained after [\d.]+ s\. It stays so until: manage.py host undrain host1", out), out
    states = [json.loads(line)["hosts"][0]["state"] for line in documents.splitlines()]
    assert states[-1] == "drained"
    assert "draining" in states
    assert status_of(cloud, server) == "SHUTOFF"
    assert (row(cloud, "host1")["state"], row(cloud, "host1")["reason"]) == ("drained", "new disk")
    again = host(cloud, "drain", "host1")
    assert (again.returncode, "(new disk); following" in again.stdout) == (0, True)

    cloud.sdk().compute.start_server(server)
    eventually("the request waits", lambda: page(cloud, "host1")["waiting"] == 1)
    assert host(cloud, "undrain", "host1").returncode == 0
    eventually("the request that waited is done", lambda: status_of(cloud, server) == "ACTIVE")


def test_ctrl_c_leaves_the_drain_and_undrain_cancels_it(cloud):
    stop_slowly(cloud, "host1")
    with terminal(cloud, "drain", "host1") as process:
        eventually("it drains", lambda: row(cloud, "host1")["state"] == "draining", pause=0.1)
        eventually("it is shown", lambda: "draining" in said(process), pause=0.1)
        process.send_signal(signal.SIGINT)
        out, code = ended(process)
    assert code == 130
    assert "Interrupted. The drain continues." in out
    assert "take it back: host undrain host1" in out
    assert "Traceback" not in out
    assert row(cloud, "host1")["wanted"] == "drained"
    with terminal(cloud, "drain", "host1") as follower:
        eventually("it is followed", lambda: "draining" in said(follower), pause=0.1)
        undrained = host(cloud, "undrain", "host1")
        out, code = ended(follower)
    assert (undrained.returncode, undrained.stdout.splitlines()[-1]) == (0, "host1 takes work.")
    assert (code, "another operator undrained it" in out) == (6, True)
    assert row(cloud, "host1")["state"] == "up"


def test_a_deadline_without_exit_is_told_and_the_drain_goes_on(cloud):
    stop_slowly(cloud, "host1")
    late = host(cloud, "drain", "host1", "--timeout", "3")
    assert (late.returncode, "still drains at its deadline, 1 operation needs it" in late.stdout) == (2, True)
    give_in(cloud, "host1")
    assert host(cloud, "drain", "host1").returncode == 0


def test_a_deadline_with_exit_ends_the_host_and_the_journal_goes_on(cloud):
    server = stop_slowly(cloud, "host1")
    pid = cloud.daemon("host1").pid()
    late = host(cloud, "drain", "host1", "--exit", "--timeout", "3")
    assert (late.returncode, "ended with 1 operation unfinished" in late.stdout) == (4, True)
    assert gone([pid], 10)
    assert host(cloud, "status", "host1").returncode == 3
    assert host(cloud, "drain", "host1", "--exit").returncode == 0  # nothing to drain
    assert host(cloud, "start", "host1").returncode == 0
    assert status_of(cloud, server) == "ACTIVE"
    give_in(cloud, "host1")
    eventually("the stop is done", lambda: status_of(cloud, server) == "SHUTOFF")


def test_a_drain_that_ends_the_host_takes_no_longer_than_its_operations(cloud):
    server = stop_slowly(cloud, "host1")
    with terminal(cloud, "drain", "host1", "--exit") as process:
        eventually("it drains", lambda: "draining" in said(process))
        give_in(cloud, "host1")
        out, code = ended(process)
    assert (code, out.splitlines()[-1]) == (0, "host1 is stopped.")
    assert cloud.daemon("host1").pid() is None
    assert status_of(cloud, server) == "SHUTOFF"


def test_a_killed_host_does_not_answer_and_comes_back_drained(cloud):
    cloud.kill("host1", signal.SIGKILL)
    silent = host(cloud, "drain", "host1", "--wait-for-answer", "4", "--reason", "it died")
    assert (silent.returncode, "host1 has not" in silent.stdout) == (3, True)
    back = host(cloud, "start", "host1")
    assert (back.returncode, "To have it take work: manage.py host undrain host1" in back.stdout) == (0, True)
    assert row(cloud, "host1")["state"] == "drained"


# -- with its guests


def test_guests_go_off_with_their_host_and_come_back_with_it(cloud):
    """Killed in the middle; its own machine restarts it; and it stays closed until somebody opens it."""
    server = running_on(cloud, "host1")
    refused = host(cloud, "shutdown-guests", "host1")
    assert (refused.returncode, "host drain host1 --shutdown-guests" in refused.stderr) == (1, True)
    cloud.sdk().compute.set_server_metadata(server, termination_grace_period_seconds="12")
    with terminal(cloud, "drain", "host1", "--shutdown-guests") as process:
        eventually("it is signalled", lambda: "shuts down: 1 signal" in said(process), pause=0.1)
        timer = clock_of(cloud, server)
        cloud.kill("host1", signal.SIGKILL)
        assert host(cloud, "start", "host1").returncode == 0
        out, code = ended(process)
    assert code == 0, out
    assert f"({server}) is off: forced off after" in out
    assert "host1 is drained" in out
    assert clock_of(cloud, server)["begun"] == timer["begun"]
    assert status_of(cloud, server) == "SHUTOFF"
    assert host(cloud, "restart", "host1").returncode == 0
    assert status_of(cloud, server) == "SHUTOFF"
    assert host(cloud, "undrain", "host1").returncode == 0
    eventually("it runs again", lambda: status_of(cloud, server) == "ACTIVE")
    actions = list(cloud.sdk().compute.server_actions(server))
    assert [action.action for action in actions[:2]] == ["start", "stop"]
    cloud.sdk().compute.delete_server_metadata(server, ["termination_grace_period_seconds"])


def test_without_worker_and_database_the_machines_own_command_turns_them_off(cloud):
    server = running_on(cloud, "host1")
    own = {"STILLWATER_ENV_FILE": str(cloud.directory / "env/host1.env")}
    cloud.kill("host1", signal.SIGKILL)
    elsewhere = host(cloud, "shutdown-guests", "host1", "--wait-for-answer", "5")
    assert (elsewhere.returncode, "its worker does not run" in elsewhere.stdout) == (3, True)
    away = {"STILLWATER_CELL_DATABASE_URL": "sqlite:////proc/nowhere/x.sqlite3"}
    done = host(cloud, "shutdown-guests", "host1", "--timeout", "2", **own, **away)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not answer" in done.stdout
    assert f"({server}) is off: forced off after 2 s" in done.stdout
    assert status_of(cloud, server) == "ACTIVE", "nobody could write it down"
    assert host(cloud, "start", "host1").returncode == 0
    eventually("it is down, then up again", lambda: [
        action.action for action in cloud.sdk().compute.server_actions(server)
    ][:2] == ["start", "stop"])  # fmt: skip
    eventually("it runs again", lambda: status_of(cloud, server) == "ACTIVE")

    cloud.sdk().compute.set_server_metadata(server, termination_grace_period_seconds="2")
    stopped = host(cloud, "stop", "host1", "--shutdown-guests", **own)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert f"({server}) is off: forced off after 2 s" in stopped.stdout
    assert cloud.daemon("host1").pid() is None
    assert status_of(cloud, server) == "SHUTOFF"
    assert host(cloud, "start", "host1").returncode == 0
    eventually("it runs again", lambda: status_of(cloud, server) == "ACTIVE")
    cloud.sdk().compute.delete_server_metadata(server, ["termination_grace_period_seconds"])


# -- processes


def test_stop_follows_to_the_end_and_every_verb_may_be_repeated(cloud):
    server = stop_slowly(cloud, "host1")
    early = host(cloud, "stop", "host1", "--timeout", "2")
    assert (early.returncode, "still drains (pid" in early.stdout) == (2, True)
    running = host(cloud, "start", "host1")
    assert (running.returncode, "is about to end" in running.stdout) == (2, True)
    taken_back = host(cloud, "undrain", "host1")
    assert (taken_back.returncode, "cannot be taken back" in taken_back.stdout) == (2, True)

    with terminal(cloud, "stop", "host1") as process:
        eventually("it drains", lambda: "draining" in said(process))
        give_in(cloud, "host1")
        out, code = ended(process)
    assert code == 0, out
    assert cloud.daemon("host1").pid() is None
    assert status_of(cloud, server) == "SHUTOFF"
    assert host(cloud, "stop", "host1").stdout.splitlines()[-1] == "host1 is stopped."
    gone_page = host(cloud, "status", "host1")
    assert (gone_page.returncode, "does not run" in gone_page.stdout) == (3, True)

    assert host(cloud, "start", "host1").returncode == 0
    pid = cloud.daemon("host1").pid()
    again = host(cloud, "start", "host1")
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, f"host1 is up (pid {pid}).")


def test_force_ends_it_and_says_that_something_is_left(cloud):
    server = stop_slowly(cloud, "host1")
    forced = host(cloud, "stop", "host1", "--timeout", "1", "--force")
    assert (forced.returncode, "ended by force" in forced.stdout) == (4, True)
    assert cloud.daemon("host1").pid() is None
    assert host(cloud, "start", "host1").returncode == 0
    assert status_of(cloud, server) == "ACTIVE"
    give_in(cloud, "host1")
    eventually("the stop is done", lambda: status_of(cloud, server) == "SHUTOFF")


def test_a_rolling_restart_takes_one_after_the_other(cloud):
    names = ["host1", "host2", "conductor-cell1", "scheduler"]
    before = {name: cloud.daemon(name).pid() for name in names}
    rolled = host(cloud, "restart", *names)
    assert rolled.returncode == 0, rolled.stdout + rolled.stderr
    after = {name: cloud.daemon(name).pid() for name in names}
    assert all(after.values())
    assert not set(after.values()) & set(before.values())
    assert rolled.stdout.splitlines()[-4:] == [f"{name} is up (pid {after[name]})." for name in names]
    born = [host_born(cloud, name) for name in ("host1", "host2")]
    assert born == sorted(born)
    document = json.loads(host(cloud, "restart", "host1", "host2", "--parallel", "2", "-f", "json").stdout)
    assert [one["ended"]["code"] for one in document["hosts"]] == [0, 0]


def test_a_worker_that_cannot_start_says_where_to_look(cloud):
    folder = cloud.directory / "hosts" / "broken"
    folder.mkdir(parents=True)
    wrong = (cloud.directory / "env/host1.env").read_text().replace("STILLWATER_HOST=host1", "STILLWATER_HOST=broken")
    (folder / "broken.env").write_text(wrong + "STILLWATER_HOST_SLOTS=many\n")
    failed = host(cloud, "start", "broken", "--env-dir", str(folder))
    assert failed.returncode == 5, failed.stdout + failed.stderr
    assert "broken" in failed.stdout + failed.stderr
    assert ".log" in failed.stdout + failed.stderr
    (folder / "host1.env").write_text((cloud.directory / "env/host1.env").read_text())
    pid = cloud.daemon("host1").pid()
    rolled = host(cloud, "restart", "broken", "host1", "--env-dir", str(folder))
    assert (rolled.returncode, rolled.stdout.splitlines()[-1]) == (5, "Not restarted: host1.")
    assert cloud.daemon("host1").pid() == pid
    stranger = host(cloud, "start", "host9")
    assert (stranger.returncode, "no worker of this machine has that name" in stranger.stderr) == (1, True)


def test_on_its_own_machine_a_host_needs_no_global_database(cloud):
    """All such a machine has is the host's env file."""
    own = {"STILLWATER_ENV_FILE": str(cloud.directory / "env/host2.env")}
    assert host(cloud, "status", "host2", **own).returncode == 0
    assert host(cloud, "restart", "host2", **own).returncode == 0
    assert host(cloud, "drain", "host2", **own).returncode == 0
    assert host(cloud, "undrain", "host2", **own).returncode == 0
    everything = host(cloud, "list", **own)
    assert (everything.returncode, "A host has no list of hosts" in everything.stderr) == (1, True)


def test_plain_celery_multi_manages_the_same_process(cloud):
    node = ["host1@stillwater", "-A", "cloud.celery"]
    files = [f"--pidfile={cloud.directory}/run/%n.pid", f"--logfile={cloud.directory}/log/%n.log"]
    options = [*node, *files, "--loglevel=INFO", "-P", "threads", "--without-mingle", "--without-gossip"]
    assert "TERM ->" in multi(cloud, "stopwait", "host1@stillwater", files[0])
    assert cloud.daemon("host1").pid() is None
    multi(cloud, "start", *options)
    first = eventually("it runs", cloud.daemon("host1").pid)
    assert host(cloud, "start", "host1").returncode == 0  # runs already; waits until it is up
    assert cloud.daemon("host1").pid() == first
    multi(cloud, "restart", *options)
    eventually("it runs again", lambda: cloud.daemon("host1").pid() not in (None, first))
    assert host(cloud, "start", "host1").returncode == 0


def test_a_worker_that_somebody_else_supervises_is_left_alone(cloud):
    """As a unit of systemd starts it: no pidfile. A second one would be started beside it."""
    assert host(cloud, "stop", "host2").returncode == 0
    named = environment(cloud) | {"STILLWATER_ENV_FILE": str(cloud.directory / "env/host2.env")}
    words = ["-A", "cloud.celery", "worker", "-n", "host2@stillwater", "-P", "threads"]
    with (cloud.directory / "log/unit.log").open("w") as out:
        unit = subprocess.Popen([str(ROOT / ".venv/bin/celery"), *words], cwd=ROOT, env=named, stdout=out, stderr=out)
    try:
        eventually("it is up", lambda: row(cloud, "host2")["state"] == "up")
        for verb in ("start", "stop", "restart"):
            refused = host(cloud, verb, "host2")
            assert (refused.returncode, f"host2 runs (pid {unit.pid})" in refused.stderr) == (1, True)
        assert host(cloud, "drain", "host2", "--exit").returncode == 0  # works on any
        assert unit.wait(20) == 0
    finally:
        unit.kill()
        unit.wait(10)


# -- what the tests need


def host(cloud: Cloud, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """`manage.py host …`, to its end."""
    return subprocess.run(
        command(*words), cwd=ROOT, env=environment(cloud) | settings, capture_output=True, text=True,
        timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def terminal(cloud: Cloud, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`manage.py host …`, while it runs; what it prints is in a file."""
    file = cloud.directory / "log" / f"terminal-{time.monotonic_ns()}.log"
    with file.open("w") as out:
        process = subprocess.Popen(
            command(*words), cwd=ROOT, env=environment(cloud) | {"PYTHONUNBUFFERED": "1"}, text=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    process.file = file  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def said(process: Any) -> str:
    """What a terminal shows so far."""
    return process.file.read_text()


def ended(process: Any) -> tuple[str, int]:
    """What a terminal showed, and the exit code."""
    code = process.wait(120)
    return said(process), code


def command(*words: str) -> list[str]:
    """The command line."""
    return [sys.executable, str(ROOT / "manage.py"), "host", *words]


def environment(cloud: Cloud) -> dict[str, str]:
    """That of a person with this cloud."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STILLWATER_") and k != "DJANGO_SETTINGS_MODULE"}
    named = {"STILLWATER_STATE": str(cloud.directory), "STILLWATER_ENV_FILE": str(cloud.directory / "stillwater.env")}
    return clean | named


def multi(cloud: Cloud, *words: str) -> str:
    """`celery multi …` as in the docs."""
    named = environment(cloud) | {"STILLWATER_ENV_FILE": str(cloud.directory / "env/host1.env")}
    with (cloud.directory / "log/multi.log").open("w+") as out:  # not a pipe: the worker would keep it open
        subprocess.run(
            [str(ROOT / ".venv/bin/celery"), "multi", *words, "--no-color"], cwd=ROOT, env=named, check=True,
            timeout=120, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
        out.seek(0)
        return out.read()


def row(cloud: Cloud, name: str) -> dict[str, Any]:
    """A host's row of `host list`."""
    rows = json.loads(host(cloud, "list", "-f", "json").stdout)["hosts"]
    return next(one for one in rows if one["host"] == name)


def page(cloud: Cloud, name: str) -> dict[str, Any]:
    """`host status`."""
    return json.loads(host(cloud, "status", name, "-f", "json").stdout)["hosts"][0]


def busy(cloud: Cloud) -> bool:
    """Whether any server is in the middle of something."""
    return any(server.task_state for server in cloud.sdk(admin=True).compute.servers(all_projects=True))


def status_of(cloud: Cloud, server: str) -> str:
    """ACTIVE, SHUTOFF …"""
    return cloud.sdk().compute.get_server(server).status


def host_born(cloud: Cloud, name: str) -> float:
    """When its process began, in seconds since the machine did."""
    with open(f"/proc/{cloud.daemon(name).pid()}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")


def boot_one_on_each_host(cloud: Cloud) -> None:
    """Boots until host1 and host2 have a server."""
    sdk, admin = cloud.sdk(), cloud.sdk(admin=True)
    image, flavor = sdk.image.find_image("micro"), sdk.compute.find_flavor("m1.nano")
    for number in range(8):
        made = sdk.compute.create_server(name=f"s{number}", image_id=image.id, flavor_id=flavor.id, networks="none")
        sdk.compute.wait_for_server(made, wait=60)
        if {one.compute_host for one in admin.compute.servers(all_projects=True)} == {"host1", "host2"}:
            return
    raise AssertionError("one host has no server after 8 boots")


def stop_slowly(cloud: Cloud, name: str) -> str:
    """Begin to stop a server of this host, which takes SLOW seconds or until it gives in; its id."""
    compute = cloud.sdk().compute
    servers = cloud.sdk(admin=True).compute.servers(all_projects=True)
    server = next(one.id for one in servers if one.compute_host == name)
    if status_of(cloud, server) == "SHUTOFF":
        compute.start_server(server)
        eventually("it runs", lambda: status_of(cloud, server) == "ACTIVE", pause=0.1)
    compute.stop_server(server)
    question = f"SELECT 1 FROM compute_step WHERE server_id = '{server}' AND state IN ('running', 'waiting')"
    eventually("the stop is begun", lambda: cloud.ask(cell_of(name), question), pause=0.1)
    return server


def give_in(cloud: Cloud, name: str) -> None:
    """Who waits for a guest of this host to be off waits no longer."""
    busy_ones = f"SELECT server_id FROM compute_step WHERE host = '{name}' AND state IN ('running', 'waiting')"
    driver = FakeDriver(state=cloud.state.path("hosts", name, "state", "guests.sqlite3"))
    try:
        for (server,) in cloud.ask(cell_of(name), busy_ones):
            driver.power_off_from_inside(server)
    finally:
        driver.close()


def running_on(cloud: Cloud, name: str) -> str:
    """A server of this host; all of its servers run."""
    compute = cloud.sdk().compute
    here = [one for one in cloud.sdk(admin=True).compute.servers(all_projects=True) if one.compute_host == name]
    for one in here:
        if one.status == "SHUTOFF":
            compute.start_server(one.id)
    eventually("they run", lambda: {status_of(cloud, one.id) for one in here} == {"ACTIVE"}, pause=0.2)
    return str(here[0].id)


def clock_of(cloud: Cloud, server: str) -> dict[str, Any]:
    """Of its newest step that has one."""
    question = f"SELECT timer FROM compute_step WHERE server_id = '{server}' AND timer IS NOT NULL ORDER BY id DESC"
    return json.loads(cloud.ask("cell1", question)[0][0])


def cell_of(name: str) -> str:
    """host1 is in cell1."""
    return name.replace("host", "cell")
