"""manage.py host without processes: what it prints, what it asks for, and how each follow ends."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell, HostMapping
from compute.hosts.drain import OpenOperation
from compute.hosts.drain_moves import DrainMove, DrainMoves
from compute.models import InstanceAction, Service, Step
from tasks.management import outcome, output, wait
from tasks.management.commands.host import Command
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot
from tests.cells.conftest import Ended

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
DAY = timedelta(days=1)


@pytest.fixture
def host(run) -> Callable[..., Ended]:
    """`manage.py host …`."""
    return partial(run, "host")


@pytest.fixture
def far(lost) -> Cell:
    """A host in a cell whose database is away."""
    HostMapping.objects.create(host="far", cell=lost)
    return lost


def service(cloud: Any, name: str = "host1") -> Service:
    """The record of a host."""
    with target_cell(cloud.hosts[name].cell):
        return Service.objects.get(host=name)


def write(cloud: Any, name: str = "host1", **columns: Any) -> None:
    """What a process or an operator writes there."""
    with target_cell(cloud.hosts[name].cell):
        Service.objects.filter(host=name).update(**columns)


def begin(cloud: Any, name: str = "host1", state: str = "running", queue: str = "requests", **columns: Any) -> Step:
    """A stop on that host."""
    now = timezone.now()
    with target_cell(cloud.hosts[name].cell):
        action = InstanceAction.objects.create(
            server_id=str(uuid4()), action="stop", key="os-stop", request_id=f"req-{uuid4()}", user_id="u",
            project_id="p", started_at=now, updated_at=now,
        )  # fmt: skip
        times = {"queued_at": now, "started_at": now if state == "running" else None}
        return Step.objects.create(
            action=action, server_id=action.server_id, name="power_off", event="e", host=name, queue=queue,
            state=state, **(times | columns),
        )  # fmt: skip


# -- list and status


def test_a_list_has_every_host_of_every_cell_and_names_the_cell_that_is_down(host, cloud, far):
    HostMapping.objects.create(host="never", cell=cloud.cells["cell1"])
    begin(cloud, "host2")
    ended = host("list", "-f", "json")
    rows = {row["host"]: row for row in json.loads(ended.out)["hosts"]}
    assert (ended.code, list(rows)) == (0, ["far", "host1", "host2", "never"])
    assert [rows[name]["state"] for name in rows] == ["unknown", "up", "up", "never seen"]
    assert [rows[name]["running"] for name in rows] == [None, 0, 1, None]
    assert "lost does not answer" in ended.err
    assert "host2" in host("list").out


def test_a_list_comes_in_pages(host, cloud, far):
    seen, marker = [], ""
    for _ in range(3):
        page = json.loads(host("list", "--limit", "1", "--marker", marker, "-f", "json").out)
        seen += [row["host"] for row in page["hosts"]]
        marker = page["next_marker"]
    assert (seen, marker) == (["far", "host1", "host2"], None)
    assert "There are more: --marker far" in host("list", "--limit", "1").err
    assert host("list", "--marker", "nobody").code == 1


def test_conductors_are_in_the_list_of_all(host, cloud):
    with target_cell(cloud.cells["cell1"]):
        Service.objects.create(binary="nova-conductor", host="conductor-cell1", last_seen_up=timezone.now())
    assert "conductor-cell1" not in host("list").out
    assert "conductor-cell1" in host("list", "--all").out
    assert "nova-conductor of cell1" in host("status", "conductor-cell1").out


def test_a_status_is_one_page_of_wanted_and_seen(host, cloud):
    begin(cloud, details="guest was signalled 2 times")
    begin(cloud, state="queued")
    write(cloud, drain_wanted=True, drain_by="ann@x", drain_reason="new disk", draining_since=timezone.now())
    page = host("status", "host1")
    assert page.code == 0
    for words in (
        "host1: draining", "nova-compute of cell1", "on another machine", "enabled, drained by ann@x: new disk",
        "takes no work since", "1 request not begun", "guest was signalled 2 times", "compute-ops.host1 ?",
    ):  # fmt: skip
        assert words in page.out, page.out
    document = json.loads(host("status", "host1", "-f", "json").out)["hosts"][0]
    assert (document["in_progress"], document["waiting"], document["drain"]["by"]) == (1, 1, "ann@x")
    assert document["queues"] == {"compute.host1": None, "compute-ops.host1": None}


def test_the_status_of_what_is_not_up_has_a_code_of_its_own(host, cloud, far):
    write(cloud, ended_at=timezone.now(), in_progress=2)
    assert host("status", "host1").code == 3
    assert host("status", "host2").code == 0
    away = host("status", "host2", "far")
    assert (away.code, "lost does not answer" in away.out) == (3, True)


# -- what a drain would wait for


def test_a_dry_run_names_operations_and_blockers_and_changes_nothing(host, cloud):
    begin(cloud, deadline=timezone.now() + timedelta(seconds=40))
    stuck = begin(cloud, started_at=timezone.now() - DAY)
    begin(cloud, state="queued")
    before = service(cloud).__dict__ | {"_state": None, "read_at": None}
    ended = host("drain", "host1", "--dry-run")
    assert ended.code == 0
    assert "host1: 2 operations would have to end, but 1 of them has no deadline" in ended.out
    assert "1 request would wait" in ended.out
    assert f"! stop of {stuck.server_id}: runs for more than five minutes, and has no deadline" in ended.out
    assert service(cloud).__dict__ | {"_state": None, "read_at": None} == before

    document = json.loads(host("drain", "host1", "host2", "--dry-run", "-f", "json").out)
    assert [len(one["operations"]) for one in document["hosts"]] == [2, 0]
    assert document["hosts"][1]["ended"]["sentence"].startswith("host2 would be drained at once")


# -- asking


def test_asking_again_keeps_who_asked_first(host, cloud):
    assert host("drain", "host1", "--no-wait", "--reason", "new disk", "--timeout", "60").code == 0
    write(cloud, drain_by="ann@x")
    first = service(cloud)
    for words in ((), ("--reason", "new disk"), ("--timeout", "60")):
        assert "ann@x requested host1 to drain" in host("drain", "host1", "--no-wait", *words).out
        again = service(cloud)
        assert (again.drain_by, again.drain_asked_at) == ("ann@x", first.drain_asked_at)

    host("drain", "host1", "--no-wait", "--exit")
    changed = service(cloud)
    assert (changed.drain_by != "ann@x", changed.drain_then_exit, changed.drain_reason) == (True, True, "new disk")
    assert abs((changed.drain_deadline - first.drain_deadline).total_seconds()) < 1


def test_a_deadline_that_is_over_does_not_end_a_host_that_is_asked_to_exit_later(host, cloud):
    write(cloud, drain_wanted=True, drain_by="ann@x", drain_asked_at=timezone.now() - DAY,
          drain_deadline=timezone.now() - timedelta(seconds=1))  # fmt: skip
    host("drain", "host1", "--no-wait", "--exit")
    assert service(cloud).drain_deadline is None


def test_a_host_that_is_stopped_has_nothing_to_drain_and_comes_back_drained(host, cloud):
    write(cloud, ended_at=timezone.now())
    ended = host("drain", "host1", "--exit")
    assert (ended.code, "stopped already" in ended.out, service(cloud).drain_wanted) == (0, True, False)
    ended = host("drain", "host1")
    assert (ended.code, "takes no work until" in ended.out, service(cloud).drain_wanted) == (0, True, True)
    assert host("undrain", "host1").code == 0
    assert not service(cloud).drain_wanted


def test_a_host_that_does_not_answer_is_given_up(host, cloud, far):
    ended = host("drain", "host1", "--wait-for-answer", "0.3", "--interval", "0.1")
    assert (ended.code, "host1 has not" in ended.out, service(cloud).drain_wanted) == (3, True, True)
    ended = host("undrain", "host1", "--wait-for-answer", "0.3", "--interval", "0.1")
    assert (ended.code, service(cloud).drain_wanted) == (3, False)
    ended = host("drain", "far")
    assert (ended.code, "far: nothing was requested, as lost does not answer" in ended.out) == (3, True)


def test_wrong_words_are_sentences(host, cloud, far, capsys):
    unknown = host("drain", "nobody")
    assert (unknown.code, "There is no host nobody. lost did not answer, and may have it." in unknown.err) == (1, True)
    for words in (("stop", "host1"), ("stop", "../host1"), ("start", "a b")):
        ended = host(*words)
        assert (ended.code, ended.out) == (1, "")
        assert "Traceback" not in ended.err
    with pytest.raises(CommandError):
        host("drain", "host1", "--timeout", "soon")
    for words in ((), ("frob",), ("drain",), ("drain", "host1", "--timeout", "nan"), ("list", "--limit", "0")):
        with pytest.raises(SystemExit) as end:
            Command().run_from_argv(["manage.py", "host", *words])
        assert end.value.code == 1
        assert "See: manage.py host" in capsys.readouterr().err


def test_the_codes_are_in_the_help(capsys):
    with pytest.raises(SystemExit) as end:
        Command().run_from_argv(["manage.py", "host", "drain", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert (end.value.code, "2 it still drains, which continues" in said, "--dry-run" in said) == (0, True, True)


# -- how a follow ends, and what it shows


def seen(*operations: OpenOperation, waiting: int = 0, **columns: Any) -> ServiceSnapshot:
    """A look at a host with this record."""
    now = timezone.now()
    record = Service(binary="nova-compute", host="h", **({"last_seen_up": now, "created_at": now} | columns))
    where = ServiceLocation("h", "nova-compute", Cell(id="c", name="cell1"))
    return ServiceSnapshot(where, record, operations, waiting)


def operation(state: str = "running", **more: Any) -> OpenOperation:
    """A stop in progress."""
    return OpenOperation(
        "stop", "power_off", state, "server-1", "req-1", "h", timezone.now() - timedelta(seconds=5), **more
    )


def wanted(**columns: Any) -> dict[str, Any]:
    """The record of a host that is wanted to drain, and does."""
    return {"drain_wanted": True, "drain_by": "ann@x", "draining_since": timezone.now()} | columns


@pytest.mark.parametrize(
    ("look", "code"),
    [
        (lambda: seen(drain_wanted=True, drain_by="ann@x"), None),
        (lambda: seen(operation(), **wanted()), None),
        (lambda: seen(**wanted(drained_at=timezone.now())), wait.DONE),
        (lambda: seen(**wanted(drained_at=timezone.now(), drain_then_exit=True)), None),
        (lambda: seen(ended_at=timezone.now()), wait.DONE),
        (lambda: seen(ended_at=timezone.now(), in_progress=1), wait.UNFINISHED),
        (lambda: seen(), wait.CANCELLED),
        (lambda: seen(draining_since=timezone.now(), drain_by="SIGTERM", drain_then_exit=True), None),
        (lambda: seen(operation(), **wanted(drain_deadline=timezone.now() - timedelta(seconds=1))), wait.STILL),
        (lambda: seen(operation(), **wanted(drain_deadline=timezone.now() - DAY)), None),  # over before we came
        (lambda: seen(operation(), **wanted(drain_deadline=timezone.now() + DAY)), None),
    ],
)
def test_a_followed_drain_ends_when(look, code):
    reached = wait.drained(timezone.now() - timedelta(minutes=1))(look())  # seen now, not when tests were collected
    assert (reached and reached.code) == code


def test_a_drained_host_that_is_then_to_be_emptied_is_followed_and_its_time_is_not_over():
    """`host drain h`, then `host drain h --migrate` ended at once, "as the time was over", and the moves went on."""
    asked = {"drained_at": timezone.now(), "drain_wanted": False, "drain_moves": 4, "drain_asked_at": timezone.now()}
    goal, listed = wait.drained(timezone.now()), DrainMoves((DrainMove("server-1", "waiting", "h"),))
    assert goal(replace(seen(**wanted(**asked)), moves=listed)) is None  # it has not read that yet
    assert goal(replace(seen(**wanted(**asked, draining_since=None)), moves=listed)) is None  # now it has
    late = goal(replace(seen(**wanted(drained_at=timezone.now(), drain_moves=4)), moves=listed))
    assert late is not None
    assert (late.code, "as the time was over" in late.sentence) == (wait.STILL, True)


def test_a_host_that_beats_and_does_not_do_what_it_is_asked_for_is_silent():
    hearing = wait.LivenessWatch(patience=-1.0)
    asked = {"drain_wanted": True, "drain_by": "ann@x"}
    assert hearing.silent_seconds(seen(**asked)) == 0
    assert hearing.silent_seconds(seen(**asked)) > 0  # another beat is no answer
    assert hearing.silent_seconds(seen(**wanted())) == 0
    assert hearing.silent_seconds(seen(**wanted())) == 0  # now it is


def test_lines_say_each_change_once():
    out = io.StringIO()
    lines = output.Output("table", OutputWrapper(out))
    looks = [seen(operation(), waiting=3, **wanted()), seen(operation(), waiting=3, **wanted())]
    for look in (*looks, seen(operation("waiting"), waiting=3, **wanted()), seen(**wanted(drained_at=timezone.now()))):
        lines.show([look])
    said = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert said == [
        "h draining: 1 in progress, 3 waiting", "h: stop of server-1 is running: power_off to end",
        "h: stop of server-1 is waiting: power_off to end",
        "h drained: 0 in progress, 0 waiting", "h: power_off of server-1 is over",
    ]  # fmt: skip


def test_an_operation_is_not_over_because_its_cell_does_not_answer_for_a_while():
    out = io.StringIO()
    lines = output.Output("table", OutputWrapper(out))
    known = seen(operation(), **wanted())
    for look in (known, ServiceSnapshot(known.location, down="silent"), known, seen(**wanted())):
        lines.show([look])
    said = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert said == [
        "h draining: 1 in progress, 0 waiting", "h: stop of server-1 is running: power_off to end",
        "h unknown: cell1 does not answer (silent)", "h draining: 1 in progress, 0 waiting",
        "h draining: 0 in progress, 0 waiting", "h: power_off of server-1 is over",
    ]  # fmt: skip


@pytest.fixture
def live(monkeypatch) -> Callable[[int], tuple[output.Output, io.StringIO]]:
    """`live(columns)`: the output of a command on a terminal of so many columns, and what the terminal got."""

    def opened(columns: int) -> tuple[output.Output, io.StringIO]:
        for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(columns), "LINES": "8"}.items():
            monkeypatch.setenv(name, value)
        out = io.StringIO()
        out.isatty = lambda: True  # type: ignore[method-assign]
        return output.Output("table", OutputWrapper(out)), out

    return opened


def test_the_live_table_fits_the_terminal_and_is_left_whole(live):
    shown, out = live(160)
    shown.show([seen(operation(), **wanted())])
    shown.show([seen(*[operation()] * 20, **wanted())])
    followed = out.getvalue()
    outcome_of_h = outcome.Outcome(2, "h still drains")
    assert shown.end([seen(*[operation()] * 20, **wanted())], {"h": outcome_of_h}) == 2
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue().removeprefix(followed)).split("HOST  CELL", 1)[1]
    assert (followed.count("power_off") < 15, last.count("power_off to end")) == (True, 20)
    assert last.splitlines()[-1] == "h still drains"


@pytest.mark.parametrize("columns", [160, 120, 80, 40])
def test_a_terminal_of_so_many_columns_cuts_nothing_off_the_table_of_a_drain(live, columns):
    """At 120 columns what an operation waited for was cut off."""
    server, waits = str(uuid4()), "3 signals (acpi); forced off at 2026-11-22T23:15:00Z unless it shuts down"
    one = seen(replace(operation("waiting", details=waits), server_id=server), **wanted(drain_reason="a new kernel"))
    shown, out = live(columns)
    shown.print_page(output.render_page([one]))
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= columns
    words, pieces = " ".join(lines).split(), "".join("".join(lines).split())
    assert server in pieces
    if columns > 40:
        assert {"ann@x", "a", "new", "kernel", server, "power_off", *waits.split()} <= set(words)


def test_json_is_one_document_and_jsonl_a_line_for_each_change():
    looks = [seen(operation(), **wanted()), seen(operation(), **wanted()), seen(**wanted(drained_at=timezone.now()))]
    ends = {"h": outcome.Outcome(0, "h is drained")}
    printed = {}
    for form in ("json", "jsonl"):
        out = io.StringIO()
        shown = output.Output(form, OutputWrapper(out))
        for look in looks:
            shown.show([look])
        shown.say("for people")
        shown.end([looks[-1]], ends)
        printed[form] = out.getvalue()
    document = json.loads(printed["json"])
    assert document["hosts"][0]["ended"] == {"code": 0, "sentence": "h is drained"}
    lines = [json.loads(line)["hosts"][0] for line in printed["jsonl"].splitlines()]
    assert [(line["state"], len(line["operations"]), line["ended"] is None) for line in lines] == [
        ("draining", 1, True), ("drained", 0, True), ("drained", 0, False),
    ]  # fmt: skip


# -- env files


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("STILLWATER_ROLE=host\nSTILLWATER_HOST='h9\n", 1, "h9.env: the value of STILLWATER_HOST cannot be read"),
        ("STILLWATER_ROLE=api\nSTILLWATER_HOST=h9\n", 1, "no worker of this machine has that name"),
        ("STILLWATER_ROLE=host\nSTILLWATER_HOST=other\n", 1, "no worker of this machine has that name"),
        (
            "STILLWATER_ROLE=host\nSTILLWATER_HOST=h9\nSTILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT=long\n",
            1,
            "STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT=long is no number of seconds",
        ),
    ],
)
def test_a_wrong_env_file_is_named(host, tmp_path, text, code, said):
    (tmp_path / "h9.env").write_text(text)
    ended = host("stop", "h9", "--env-dir", str(tmp_path))
    assert ended.code == code
    assert said in ended.err


def test_a_worker_is_known_by_its_env_file_alone(host, cloud, tmp_path):
    cell = cloud.cells["cell1"]
    lines = {
        "ROLE": "host",
        "HOST": "h9",
        "CELL_UUID": cell.id,
        "CELL_NAME": "cell1",
        "CELL_DATABASE_URL": cell.database_url,
    }
    (tmp_path / "h9.env").write_text("".join(f"STILLWATER_{name}={value}\n" for name, value in lines.items()))
    assert (host("status", "h9").code, host("status", "h9", "--env-dir", str(tmp_path)).code) == (1, 3)
    with target_cell(cell):
        Service.objects.create(binary="nova-compute", host="h9", last_seen_up=timezone.now())
    page = host("status", "h9", "--env-dir", str(tmp_path))
    assert (page.code, "does not run, log" in page.out) == (0, True)
    assert host("stop", "h9", "--env-dir", str(tmp_path)).out.splitlines()[-1] == "h9 is stopped."


def test_a_scheduler_is_known_while_no_database_says_where_its_record_is(host, cloud, tmp_path):
    Cell.objects.filter(name="cell0").delete()
    (tmp_path / "s9.env").write_text("STILLWATER_ROLE=scheduler\nSTILLWATER_HOST=s9\n")
    ended = host("stop", "s9", "--env-dir", str(tmp_path))
    assert (ended.code, "s9 is stopped; what it left is not known" in ended.out) == (0, True)


def test_a_state_folder_celery_multi_cannot_take_is_refused(host, monkeypatch):
    monkeypatch.setenv("STILLWATER_STATE", "/tmp/a b")
    ended = host("start", "h9")
    assert (ended.code, "cannot take a state folder with a space" in ended.err) == (1, True)
