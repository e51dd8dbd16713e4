"""stillwater server …, from the shell to the journal and back."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import threading

import pytest
from django.utils import timezone

from cells.models import InstanceMapping
from compute.api.servers import ServerView
from compute.models import Flavor
from compute.virt.base import VirtError

pytestmark = pytest.mark.live  # a process for every command: a second each


def test_a_list_for_people_and_for_programs(shell, boot):
    web, db = boot("web1"), boot("[red]dä[/red]")
    shown = shell("server", "list")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert web in shown.stdout
    assert "[red]dä[/red]" in shown.stdout
    assert r"[red]d\xe4[/red]" in shell("server", "list", PYTHONIOENCODING="ascii").stdout
    rows = {row["id"]: row for row in shell.json("server", "list")}
    assert rows[web] == {
        "id": web, "name": "web1", "status": "ACTIVE", "task_state": None, "power_state": "running",
        "flavor": "m1.tiny", "networks": {},
    }  # fmt: skip
    values = shell("server", "list", "-f", "value", "-c", "id", "-c", "status", "--name", "^web1$")
    assert values.stdout == f"{web}\tACTIVE\n"
    everybodys = shell.json("server", "list", "--all-projects", user="admin")
    assert {row["id"]: row["host"] is not None for row in everybodys} == {web: True, db: True}
    assert shell.json("server", "list", user="admin") == []


def test_a_long_list_comes_page_by_page(shell, boot, settings):
    settings.MAX_LIMIT = 2  # so that there are pages
    ids = [boot(f"s{n}") for n in range(5)][::-1]
    assert [row["id"] for row in shell.json("server", "list")] == ids
    first = shell("server", "list", "--limit", "3", "-f", "value", "-c", "id")
    assert first.stdout.split() == ids[:3]
    assert f"--marker {ids[2]}" in first.stderr
    assert [row["id"] for row in shell.json("server", "list", "--limit", "3", "--marker", ids[2])] == ids[3:]


def test_a_server_is_shown(shell, boot):
    web = boot("web1", metadata={"role": "web"})
    assert "web1" in shell("server", "show", "web1").stdout
    shown = shell.json("server", "show", web)
    assert (shown["id"], shown["status"], shown["metadata"]) == (web, "ACTIVE", {"role": "web"})
    assert shell("server", "show", "web1", "-f", "value", "-c", "status").stdout == "ACTIVE\n"


def test_who_is_not_there_or_there_twice_is_said(shell, boot):
    ids = {boot("twin"), boot("twin")}
    missing = shell("server", "show", "web9")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("stillwater: there is no server 'web9'\n  See which there are: stillwater")
    twice = shell("server", "stop", "twin")
    assert twice.returncode == 1
    assert "2 servers are called 'twin'" in twice.stderr
    assert all(uuid in twice.stderr for uuid in ids)


def test_nobody_is_stopped_when_one_of_them_is_not_there(shell, boot, cloud):
    web = boot("web1")
    done = shell("server", "stop", "web1", "wbe2", "--wait")
    assert done.returncode == 1
    assert cloud.row(web).vm_state == "active"


def test_several_are_stopped_and_started_at_once(shell, boot, cloud):
    ids = [boot(name) for name in ("a", "b", "c")]
    rows = shell.json("server", "stop", "a", "b", ids[2], "--wait")
    assert [(row["id"], row["name"], row["result"], row["status"]) for row in rows] == [
        (uuid, name, "done", "SHUTOFF") for uuid, name in zip(ids, "abc", strict=True)
    ]
    assert {cloud.row(uuid).vm_state for uuid in ids} == {"stopped"}
    assert [row["request_id"] for row in rows] == [cloud.history(uuid)[-1].request_id for uuid in ids]

    done = shell("server", "start", "a", "b", "--wait")
    assert done.returncode == 0
    assert [line.partition(" in ")[0] for line in done.stdout.splitlines()] == ["a: started", "b: started"]


def test_what_is_done_is_never_shown_as_it_was_before(shell, boot, cloud, monkeypatch):
    """The guest went off between the two requests of one look: "done", and ACTIVE."""
    boot("web1")
    get, looked, is_off = ServerView.get, threading.Event(), threading.Event()

    def slow(self, request, server_id):
        answer = get(self, request, server_id)
        if answer.data["server"]["OS-EXT-STS:task_state"]:
            looked.set()
            is_off.wait(30)
        return answer

    monkeypatch.setattr(ServerView, "get", slow)
    waiting = shell.begin("server", "stop", "web1", "--wait", "-f", "json")
    assert looked.wait(30)
    cloud.work()
    is_off.set()
    [row] = json.loads(shell.end(waiting).stdout)
    assert (row["result"], row["status"]) == ("done", "SHUTOFF")


def test_without_wait_it_is_asked_and_the_request_is_named(shell, boot, cloud):
    web = boot("web1")
    done = shell("server", "stop", "web1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"web1: stop accepted, request {cloud.history(web)[-1].request_id}\n"


def test_one_that_is_refused_does_not_keep_the_others(shell, boot, cloud):
    off, on = boot("off"), boot("on")
    assert shell("server", "stop", "off", "--wait").returncode == 0
    done = shell("server", "stop", "off", "on", "--wait")
    assert done.returncode == 1
    assert "off: refused: Cannot 'stop' instance" in done.stderr
    assert f"See its state: stillwater server show {off}" in done.stderr
    assert done.stdout.startswith("on: stopped in ")
    assert cloud.row(on).vm_state == "stopped"


def test_an_owner_sees_the_shutdown_go_on_and_how_it_went(shell, boot, cloud):
    host = cloud.host_of(boot("web1"))
    host.driver.faults.shutdown(delay=4)
    with host.with_watcher():
        done = shell("server", "stop", "web1", "--shutdown-timeout", "30", "--wait")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^web1: guest is shutting down, (2\d|30) s left, 1 signal \(acpi\)$", done.stderr, re.MULTILINE)
    assert re.fullmatch(r"web1: stopped in \d+\.\d s: guest shut down in [4-9]\.\d s, 1 signal \(acpi\)\n", done.stdout)


def test_a_servers_own_grace_is_what_its_guest_gets(shell, boot, cloud):
    host = cloud.host_of(boot("web1", metadata={"termination_grace_period_seconds": "3600"}))
    host.driver.faults.shutdown(delay=4)
    with host.with_watcher():
        done = shell("server", "stop", "web1", "--wait", "--timeout", "3")
        assert done.returncode == 4, done.stderr
        assert re.search(r"web1: timed out: guest is shutting down, 3\d\d\d s left", done.stderr)
        assert shell("server", "show", "web1", "--wait").returncode == 0
    assert shell("server", "show", "web1", "-f", "value", "-c", "termination_grace_period_seconds").stdout == "3600\n"


def test_a_failed_operation_is_1_and_says_why(shell, boot, cloud):
    web = boot("web1")
    cloud.host_of(web).driver.faults.fail("reboot_hard", 9, VirtError)
    done = shell("server", "reboot", "--hard", "web1", "--wait")
    assert (done.returncode, done.stdout) == (1, "")
    assert "web1: failed: " in done.stderr
    assert f"openstack server event show {web} {cloud.history(web)[-1].request_id}" in done.stderr


def test_a_wait_has_an_end_and_the_operation_goes_on(shell, boot, cloud):
    web = boot("web1")
    waiting = shell.begin("server", "stop", "web1", "--wait", "--timeout", "1", "-f", "json")
    out, err = waiting.communicate(timeout=60)  # no host does anything meanwhile
    assert waiting.returncode == 4, err
    assert '"result": "timed out"' in out
    assert f"the operation continues\n  Continue to wait: stillwater server show {web} --wait\n" in err

    followed = shell("server", "show", web, "--wait", "-f", "value", "-c", "status")
    assert (followed.returncode, followed.stdout) == (0, "SHUTOFF\n")


def test_ctrl_c_ends_the_wait_and_nothing_else(shell, boot, cloud):
    web = boot("web1")
    waiting = shell.begin("server", "stop", "web1", "--wait")
    assert waiting.stderr.readline() == "web1: powering-off\n"
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (130, "")
    assert "web1: interrupted: the operation continues" in err
    cloud.work()
    assert cloud.row(web).vm_state == "stopped"


def test_on_a_terminal_a_line_turns_until_it_is_over(shell, boot, cloud):
    boot("web1")
    ours, theirs = pty.openpty()
    waiting = shell.begin("server", "stop", "web1", "--wait", stderr=theirs, TERM="xterm", COLUMNS="100")
    os.close(theirs)
    shown = b""
    while b"powering-off" not in shown:
        shown += os.read(ours, 4096)
    assert b"web1" in shown
    done = shell.end(waiting)
    assert (done.returncode, done.stdout.startswith("web1: stopped in ")) == (0, True)
    os.close(ours)


def test_a_list_waits_until_nothing_goes_on(shell, boot, demo):
    web = boot("web1")
    demo.send("post", f"/servers/{web}/action", {"os-stop": None})
    done = shell("server", "list", "--wait", "-f", "value", "-c", "name", "-c", "status", "-c", "task_state")
    assert (done.returncode, done.stdout) == (0, "web1\tSHUTOFF\t\n")


def test_into_rescue_and_back(shell, boot, cloud):
    web = boot("web1")
    done = shell("server", "rescue", "web1", "--image", "tiny", "--password", "open sesame", "--wait")
    assert done.returncode == 0, done.stderr
    assert "web1: in rescue in " in done.stdout
    assert "  password: open sesame\n" in done.stdout
    assert f"stillwater server unrescue {web}" in done.stderr
    assert shell("server", "unrescue", "web1", "--wait").returncode == 0
    assert cloud.row(web).vm_state == "active"


def test_onto_the_shelf_and_back(shell, boot, cloud):
    web = boot("web1")
    for verb, state in (("shelve", "shelved_offloaded"), ("unshelve", "active")):
        done = shell("server", verb, "web1", "--wait")
        assert done.returncode == 0, done.stderr
        assert cloud.row(web).vm_state == state


def test_moves_are_confirmed_or_reverted(shell, boot, cloud, settings):
    Flavor.objects.create(flavor_id="2", name="m1.small", vcpus=1, memory_mb=1024, disk_gb=1, extra_specs={})
    cloud.add_host("host3", "cell1")
    cloud.add_host("host4", "cell2")
    web = boot("web1")
    for words, state in [
        (("resize", "web1", "--flavor", "m1.small"), "resized"), (("resize", "web1", "--revert"), "active"),
        (("migrate", "web1"), "resized"), (("resize", "web1", "--confirm"), "active"),
    ]:  # fmt: skip
        as_admin = {"user": "admin"} if words[0] == "migrate" else {}
        done = shell("server", *words, "--wait", *(["--all-projects"] if as_admin else []), **as_admin)
        assert done.returncode == 0, done.stderr
        assert cloud.row(web).vm_state == state
        assert (f"stillwater server resize --confirm {web}" in done.stderr) == (state == "resized")


def test_a_member_may_not_migrate_and_is_told_who_may(shell, boot):
    boot("web1")
    done = shell("server", "migrate", "web1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "web1: refused: Policy doesn't allow" in done.stderr
    assert "Your role does not allow it" in done.stderr


def test_deleted_is_done_when_it_is_gone(shell, boot, demo):
    ids = [boot("a"), boot("b")]
    done = shell("server", "delete", "a", "b", "--wait")
    assert done.returncode == 0, done.stderr
    assert [line.partition(" in ")[0] for line in done.stdout.splitlines()] == ["a: deleted", "b: deleted"]
    assert [demo.get(f"/servers/{uuid}").status_code for uuid in ids] == [404, 404]


def test_a_server_of_a_cell_that_is_down_is_unknown(shell, boot, cloud, cells, people, down_cell):
    web = boot("web1")
    project = people.projects["demo"].id
    lost = "99999999-9999-4999-8999-999999999999"
    InstanceMapping.objects.create(
        server_id=lost, cell=down_cell, project_id=project, user_id="u", created_at=timezone.now()
    )
    rows = shell.json("server", "list")
    assert {row["id"]: row["status"] for row in rows} == {web: "ACTIVE", lost: "UNKNOWN"}
    assert lost in shell("server", "list").stdout
    assert shell.json("server", "show", lost)["status"] == "UNKNOWN"
    refused = shell("server", "stop", lost)
    assert refused.returncode == 1
    assert f"stillwater server show {lost} --wait" in refused.stderr


def test_a_wrong_password_is_said(shell, people):
    people.users["demo"].set_password("changed")
    people.users["demo"].save()
    done = shell("server", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("stillwater: the login was refused: ")
    assert "Check user, password and project" in done.stderr
