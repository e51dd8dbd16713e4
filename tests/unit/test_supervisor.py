"""What is said to systemd, over a real socket, and what is said to a person when it would kill too soon."""

from __future__ import annotations

import math
import os
import select
import socket
import stat
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from cloud import systemd as cloud_systemd

SECONDS = 20


@pytest.fixture(params=["path", "abstract"])
def systemd(request, tmp_path, monkeypatch):
    """The socket systemd would listen on; both kinds there are."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@stillwater-{uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + name[1:] if name.startswith("@") else name)
        heard.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield heard


@pytest.fixture(autouse=True)
def _no_supervisor(monkeypatch, settings):
    """Whatever supervises the test run is not meant."""
    for name in ("NOTIFY_SOCKET", "INVOCATION_ID", "WATCHDOG_USEC", "WATCHDOG_PID", "MANAGERPID"):
        monkeypatch.delenv(name, raising=False)
    settings.SUPERVISOR_TIMEOUT = None


@pytest.fixture
def in_unit(tmp_path, monkeypatch):
    """`in_unit(TimeoutStopUSec="30s")`: this process is in a systemd service that says so when asked."""

    def settle(place: str = "/system.slice/stillwater-host@h1.service", **facts: str) -> None:
        cgroup, program = tmp_path / "cgroup", tmp_path / "bin/systemctl"
        cgroup.write_text(f"1:cpu:/\n0::{place}\n")
        program.parent.mkdir()
        lines = "".join(f'echo "{name}={value}"\n' for name, value in facts.items())
        program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{lines}' if facts else "#!/bin/sh\nexit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("INVOCATION_ID", "a" * 32)
        monkeypatch.setattr(cloud_systemd, "CGROUP", cgroup)

    return settle


def words(systemd) -> list[str]:
    return systemd.recv(4096).decode().split("\n")


def systemd_is_silent(systemd) -> bool:
    return not select.select([systemd], [], [], 0)[0]


def test_a_life_as_systemd_hears_it(systemd):
    cloud_systemd.ready("takes work")
    cloud_systemd.status("3 steps\nin progress")
    cloud_systemd.stopping("draining")
    cloud_systemd.extend(12.5, "1 operation left")
    assert [words(systemd) for _ in range(4)] == [
        ["READY=1", "STATUS=takes work"],
        ["STATUS=3 steps in progress"],
        ["STOPPING=1", "STATUS=draining"],
        ["EXTEND_TIMEOUT_USEC=12500000", "STATUS=1 operation left"],
    ]


def test_without_systemd_nothing_is_said_and_nothing_fails(monkeypatch, caplog):
    cloud_systemd.ready()
    assert cloud_systemd.watch(lambda: True) is None
    assert caplog.records == []

    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    cloud_systemd.ready()
    assert "supervisor.notify_failed" in caplog.text


def test_the_watchdog_is_fed_while_the_process_is_well(systemd, monkeypatch, caplog):
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    health, over = iter([True, False, False, True]), threading.Event()

    def healthy() -> bool:
        answer = next(health, None)
        if answer is None:
            over.set()
            threading.Event().wait()  # nothing more to say; the thread is a daemon
        return bool(answer)

    cloud_systemd.watch(healthy)
    assert over.wait(SECONDS)
    assert [words(systemd), words(systemd)] == [["WATCHDOG=1"]] * 2
    assert systemd_is_silent(systemd)
    assert caplog.text.count("supervisor.unhealthy") == 1


def test_a_watchdog_meant_for_another_process_is_left_alone(systemd, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert cloud_systemd.watch(lambda: True) is None


def test_nobody_knows_without_a_supervisor(caplog):
    assert cloud_systemd.kill_after() == (None, "unknown")
    cloud_systemd.warn_if_impatient(180)
    assert caplog.records == []


def test_what_the_manifest_said_is_believed(settings):
    settings.SUPERVISOR_TIMEOUT = 210.0
    assert cloud_systemd.kill_after()[0] == 210
    settings.SUPERVISOR_TIMEOUT = 0.0
    assert cloud_systemd.kill_after()[0] == math.inf


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"TimeoutStopUSec": "30s"}, 30),
        ({"TimeoutStopUSec": "3min 30s", "KillMode": "mixed"}, 210),
        ({"TimeoutStopUSec": "1d 2h 500ms"}, 93600.5),
        ({"TimeoutStopUSec": "infinity"}, math.inf),
        ({"TimeoutStopUSec": "30s", "KillMode": "none"}, math.inf),
        ({"TimeoutStopUSec": "30s", "SendSIGKILL": "no"}, math.inf),
    ],
)
def test_systemd_is_asked_before_what_the_unit_once_said(in_unit, settings, tmp_path, facts, seconds):
    in_unit(**facts)
    settings.SUPERVISOR_TIMEOUT = 5.0
    assert cloud_systemd.kill_after() == (seconds, "systemd (stillwater-host@h1.service)")
    assert "--user" not in (tmp_path / "asked").read_text()


def test_a_users_own_systemd_is_another_one(in_unit, tmp_path, monkeypatch):
    monkeypatch.setenv("MANAGERPID", "77")
    in_unit("/user.slice/user-0.slice/user@0.service/app.slice/x.service", TimeoutStopUSec="30s")
    assert cloud_systemd.kill_after()[0] == 30
    assert "--user show x.service" in (tmp_path / "asked").read_text()


def test_a_systemd_that_does_not_answer_leaves_what_we_were_told(in_unit, settings):
    in_unit()
    settings.SUPERVISOR_TIMEOUT = 5.0
    assert cloud_systemd.kill_after() == (5, "as STILLWATER_SUPERVISOR_TIMEOUT says")


def test_a_login_session_is_no_supervisor(in_unit):
    in_unit("/user.slice/user-0.slice/session-3.scope", TimeoutStopUSec="30s")
    assert cloud_systemd.kill_after() == (None, "unknown")


@pytest.mark.parametrize(
    ("kills_after", "ours", "advice"),
    [
        (30.0, 180.0, "killed 30 s after SIGTERM, in the middle of its work. Give it more than 180 s"),
        (180.0, 180.0, "set STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT to less than 180"),
        (900.0, 0.0, "Let it wait for ever (systemd: TimeoutStopSec=infinity"),
        (210.0, 180.0, ""),
        (0.0, 0.0, ""),
    ],
)
def test_one_who_would_kill_too_soon_is_named_with_what_to_change(settings, caplog, kills_after, ours, advice):
    settings.SUPERVISOR_TIMEOUT = kills_after
    cloud_systemd.warn_if_impatient(ours)
    assert len(caplog.records) == (1 if advice else 0)
    assert advice in caplog.text


def test_our_place_is_found_in_both_kinds_of_cgroups(monkeypatch, tmp_path):
    assert Path(cloud_systemd.CGROUP).is_file()
    for text in ("0::/a/b.service\n", "4:memory:/x\n1:name=systemd:/a/b.service\n0::/\n"):
        (tmp_path / "cgroup").write_text(text)
        monkeypatch.setattr(cloud_systemd, "CGROUP", tmp_path / "cgroup")
        assert cloud_systemd._cgroup() == "/a/b.service"
