"""manage.py host shutdown-guests, and the same with drain: what it asks, says and does where nobody can be asked."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.management.base import OutputWrapper
from django.db import connections
from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell
from compute.hosts import guest_shutdown
from compute.hosts.guest_shutdown import GuestShutdown
from compute.models import Instance, Service
from compute.power import sync
from compute.virt.base import PowerState
from compute.virt.fake.driver import FakeDriver
from tasks import boot_marker
from tasks.management import output, wait
from tasks.management.commands.host import Command
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot
from tests.byhand import Host
from tests.cells.conftest import Ended
from tests.conftest import url_of
from tests.flow import stories
from tests.flow.going_down import drained, one_host

QUICK = ("--interval", "0.1")


@pytest.fixture
def host(run) -> Callable[..., Ended]:
    """`manage.py host …`."""
    return partial(run, "host")


@pytest.fixture
def servers(api, cloud, tmp_path) -> Iterator[list[str]]:
    """Two on host1, whose guests outlive its process."""
    cloud.hosts["host1"] = Host("host1", cloud.cells["cell1"], state=tmp_path / "guests.sqlite3")
    one_host(cloud)
    yield [cloud.boot(api, "late", metadata={"shutdown_priority": "5"}), cloud.boot(api, "early")]
    cloud.hosts["host1"].driver.close()


@pytest.fixture
def on_its_machine(cloud, servers, settings, tmp_path) -> Iterator[FakeDriver]:
    """Its own settings, and no process of it."""
    cell = cloud.cells["cell1"]
    settings.ROLE, settings.HOST, settings.HOST_STATE = "host", "host1", tmp_path
    settings.CELL_UUID, settings.CELL_NAME, settings.CELL_DATABASE_URL = cell.id, "cell1", url_of(cell.alias)
    killed_long_ago(cloud)
    settings.DRIVER, settings.FAKE_OPTIONS = "fake", {"hostname": "host1", "state": tmp_path / "guests.sqlite3"}
    return cloud.hosts["host1"].driver


@contextmanager
def works(cloud, then: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The host carries out what it is asked for, meanwhile; `then` happens, once it can."""
    over = threading.Event()

    def work() -> None:
        happened = False
        while not over.wait(0.05):
            cloud.work()
            happened = happened or then()
        connections.close_all()

    with cloud.hosts["host1"].with_watcher():
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(30)


def killed_long_ago(cloud) -> None:
    """host1's process."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(last_seen_up=timezone.now() - timedelta(days=1))


def powers(cloud) -> set[PowerState]:
    return set(cloud.hosts["host1"].driver.guests().values())


def test_a_host_that_takes_work_is_refused_with_advice(host, cloud, servers):
    refused = host("shutdown-guests", "host1")
    assert refused.code == 1
    assert "takes work, so servers would arrive and be started meanwhile" in refused.err
    assert "manage.py host drain host1 --shutdown-guests" in refused.err
    assert not cloud.queued()


def test_it_is_followed_until_every_guest_is_off(host, cloud, servers):
    drained(cloud)
    cloud.hosts["host1"].driver.faults.shutdown(delay=0.4)
    with works(cloud):
        done = host("shutdown-guests", "host1", *QUICK)
    late, early = servers
    assert done.code == 0, done.out + done.err
    assert f"host1: early ({early}) shuts down: 1 signal, " in done.out
    assert f"host1: late ({late}) is off: guest shut down in 0." in done.out
    assert done.out.index(f"early ({early}) is off") < done.out.index(f"late ({late}) shuts down")
    assert "host1: 2 of 2 guests are off after" in done.out
    assert powers(cloud) == {PowerState.SHUTDOWN}
    again = host("shutdown-guests", "host1")
    assert (again.code, again.out.strip()) == (0, "host1: no guest is on.")


def test_it_may_only_ask_and_be_followed_later_as_json(host, cloud, servers):
    drained(cloud)
    asked = host("shutdown-guests", "host1", "--no-wait", "--parallel", "1", "--timeout", "30")
    assert (asked.code, "Follow it: manage.py host shutdown-guests host1" in asked.out) == (0, True)
    assert len(cloud.queued()) == 2
    assert {step.action.params["at_once"] for _, step in cloud.queued()} == {1}
    page = host("status", "host1")
    assert "host1: 0 of 2 guests off, 2 waiting" in page.out
    with works(cloud):
        done = host("shutdown-guests", "host1", "-f", "json", *QUICK)
    [document] = json.loads(done.out)["hosts"]
    assert (done.code, document["ended"]["code"]) == (0, 0)
    assert [(row["name"], row["priority"], row["state"]) for row in document["guests"]] == [
        ("early", 0, "off"), ("late", 5, "off"),
    ]  # fmt: skip
    assert len([a for a in cloud.history(servers[0]) if a.action == "stop"]) == 1


def test_who_is_paused_is_named_beforehand(host, api, cloud, servers):
    stories.lead(api, cloud, servers[1], ("pause",))
    forecast = host("drain", "host1", "--shutdown-guests", "--dry-run")
    assert "host1: 2 guests would go off.\n  ! early is paused: its memory would be lost\nThen: host1" in forecast.out
    assert not cloud.queued()
    drained(cloud)
    asked = host("shutdown-guests", "host1", "--no-wait")
    assert f"host1: early ({servers[1]}) is paused and will be forced off: its memory is lost." in asked.out


def test_a_drain_closes_the_host_and_its_guests_go_off_before_it_is_drained(host, api, cloud, servers):
    asked = host("drain", "host1", "--shutdown-guests", "--no-wait", "--timeout", "300", "--reason", "disk")
    assert asked.code == 0
    with target_cell(cloud.cells["cell1"]):
        service = Service.objects.get(host="host1")
        assert (service.drain_wanted, service.drain_reason) == (True, "disk")
        assert guest_shutdown.going_on("host1")
    untils = {step.action.params["until"] for _, step in cloud.queued()}
    assert len(untils) == 1
    assert untils.pop() < service.drain_deadline.timestamp() - 5
    cloud.work()
    assert powers(cloud) == {PowerState.SHUTDOWN}
    assert host("undrain", "host1", "--wait-for-answer", "1").code in (0, 3)


def test_a_server_that_is_on_when_all_others_are_off_goes_off_too(host, api, cloud, servers):
    """It came by a move that was under way; here somebody turned it on, on the machine itself."""
    at = cloud.hosts["host1"]
    now = timezone.now()
    with target_cell(at.cell):
        Service.objects.filter(host="host1").update(draining_since=now, drain_wanted=True)

    def once() -> bool:
        with target_cell(at.cell):
            if powers(cloud) != {PowerState.SHUTDOWN} or guest_shutdown.has_open("host1"):
                return False
            at.driver.power_on(Instance.objects.get(uuid=servers[0]).as_guest())
            sync.sync("host1", at.driver)
            return bool(Service.objects.filter(host="host1").update(drained_at=now))

    with works(cloud, once):
        done = host("drain", "host1", "--shutdown-guests", *QUICK)
    assert done.code == 0, done.out + done.err
    assert "host1 is drained" in done.out
    assert "host1: 1 of 1 guests are off after" in done.out
    assert powers(cloud) == {PowerState.SHUTDOWN}


@pytest.mark.parametrize("verb", ["shutdown-guests", "drain"])
def test_an_undrain_takes_it_back(verb, host, cloud, servers):
    drained(cloud)
    words = ("--shutdown-guests",) if verb == "drain" else ()
    host(verb, "host1", *words, "--no-wait")
    host("undrain", "host1", "--wait-for-answer", "1")
    assert not cloud.queued()
    assert powers(cloud) == {PowerState.RUNNING}
    assert {cloud.history(each)[-1].outcome for each in servers} == {"the host takes work again"}


def test_only_compute_hosts_have_guests(host, cloud):
    with target_cell(cloud.cells["cell1"]):
        Service.objects.create(binary="nova-conductor", host="c1", last_seen_up=timezone.now())
    assert host("shutdown-guests", "c1").code == 1
    assert host("drain", "c1", "--shutdown-guests").code == 1
    assert host("shutdown-guests", "nobody").code == 1


# -- nobody can be asked


def test_from_another_machine_it_says_where_to_go(host, cloud, servers):
    killed_long_ago(cloud)
    silent = host("shutdown-guests", "host1")
    assert silent.code == 3
    assert "its worker does not run, and its guests were not shut down. On its machine, with its own" in silent.out
    assert powers(cloud) == {PowerState.RUNNING}


def test_on_its_machine_a_dead_worker_is_no_reason_to_leave_them_on(host, cloud, servers, on_its_machine, tmp_path):
    late, early = servers
    done = host("shutdown-guests", "host1", *QUICK)
    assert done.code == 0, done.out + done.err
    assert "host1: its worker does not run; its guests are shut down by the hypervisor itself." in done.out
    assert done.out.index(f"early ({early}) is off") < done.out.index(f"late ({late}) is off")
    assert "host1: 2 of 2 guests are off after" in done.out
    assert powers(cloud) == {PowerState.SHUTDOWN}
    assert boot_marker.host_booted(tmp_path), "its next start brings them back"
    assert {stories.states(cloud, each) for each in servers} == {("active", None)}


def test_without_the_cells_database_too_and_a_clock_that_runs_is_joined(host, cloud, servers, on_its_machine, settings):
    settings.CELL_UUID = "99999999-9999-4999-8999-999999999999"
    settings.CELL_DATABASE_URL = "sqlite:////proc/nowhere/x.sqlite3"
    driver = on_its_machine
    driver.faults.shutdown(delay=1)
    begun = driver.begin_shutdown(servers[1], 20, 10)
    done = host("shutdown-guests", "host1", "--timeout", "60", "-f", "json", *QUICK)
    [document] = json.loads(done.out)["hosts"]
    assert (done.code, document["state"]) == (0, "unknown"), done.out
    assert [row["state"] for row in document["guests"]] == ["off", "off"]
    timer = driver.timer(servers[1])
    assert (timer.begun, timer.deadline) == (begun.begun, begun.deadline)


def test_a_guest_whose_record_is_gone_has_the_grace_its_host_keeps(
    host, api, cloud, servers, on_its_machine, settings
):
    driver = on_its_machine
    cloud.hosts["host1"].report()
    cloud.boot(api, "stubborn", metadata={"termination_grace_period_seconds": "1"})
    killed_long_ago(cloud)
    with target_cell(cloud.cells["cell1"]):
        Instance.objects.filter(display_name="stubborn").delete()
    settings.FAKE_OPTIONS = settings.FAKE_OPTIONS | {"faults": "shutdown.ignore=1"}
    for server_id in servers:
        driver.force_off(server_id)
    done = host("shutdown-guests", "host1", *QUICK)
    assert "is off: forced off after 1 s" in done.out, done.out
    assert "1 of 1 guests are off after 1" in done.out
    assert "1 of them forced off" in done.out


def test_the_time_of_all_counts_for_a_guest_that_has_more(host, cloud, servers, on_its_machine, settings):
    settings.FAKE_OPTIONS = settings.FAKE_OPTIONS | {"faults": "shutdown.ignore=1"}
    done = host("shutdown-guests", "host1", "--timeout", "1", *QUICK)
    assert done.code == 0
    assert "forced off after 1 s" in done.out
    assert "late" in done.out
    assert powers(cloud) == {PowerState.SHUTDOWN}


def test_a_hypervisor_that_is_away_is_said_to_be(host, cloud, servers, on_its_machine, settings):
    away = "shutdown_preferences.fail=always,shutdown_preferences.error=HypervisorUnavailable"
    settings.FAKE_OPTIONS = settings.FAKE_OPTIONS | {"faults": away}
    silent = host("shutdown-guests", "host1", *QUICK)
    assert (silent.code, "the hypervisor does not answer" in silent.out) == (3, True)


def test_ctrl_c_says_what_becomes_of_the_guests(host, cloud, servers, on_its_machine, monkeypatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output.Output, "show", interrupt)
    ended = host("shutdown-guests", "host1", *QUICK)
    assert (ended.code, "The guests get no more signals" in ended.err) == (130, True)


# -- the words


def line(state: str, **words: Any) -> GuestShutdown:
    return GuestShutdown("uuid-1", "web", "req-1", 0, state, **words)


def look(*lines: GuestShutdown) -> ServiceSnapshot:
    place = ServiceLocation("host1", "nova-compute", Cell(id="1", name="cell1"))
    return ServiceSnapshot(place, Service(host="host1", last_seen_up=timezone.now()), guests=lines)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((), None),
        ((line("off", words="guest shut down in 2.0 s"), line("shutting down")), None),
        ((line("off", words="forced off after 60 s"),), 0),
        ((line("off"), line("failed", words="no")), 4),
        ((line("off"), line("called off")), 6),
    ],
)
def test_a_followed_shutdown_ends_when(lines, code):
    reached = wait.guests_off()(look(*lines))
    assert (reached and reached.code) == code


def test_lines_name_each_guest_with_its_signals_and_the_time_it_has_left():
    out = io.StringIO()
    shown = output.Output("table", OutputWrapper(out))
    down = partial(line, "shutting down")
    shown.show([look(line("waiting", words="waits for its turn"))])
    for left, signals in ((58.2, 1), (50.0, 1), (48.0, 2)):
        shown.show([look(down(seconds_left=left, signals=signals))])
    shown.show([look(line("off", words="guest shut down in 12.0 s, 2 signals (acpi)"))])
    said = [text.split(" ", 1)[1] for text in out.getvalue().splitlines() if "web" in text]
    assert said == [
        "host1: web (uuid-1) shuts down: 1 signal, 58 s left",
        "host1: web (uuid-1) shuts down: 2 signals, 48 s left",
        "host1: web (uuid-1) is off: guest shut down in 12.0 s, 2 signals (acpi)",
    ]


def test_the_table_has_the_progress_and_a_row_for_each_guest():
    """First who is not off yet, or failed."""
    lines = (line("off", words="guest shut down in 2.0 s"), line("shutting down", seconds_left=7.4, signals=3))
    out = io.StringIO()
    output.Output("table", OutputWrapper(out)).print_page(output.render_page([look(*lines)]))
    text = out.getvalue()
    assert "host1: 1 of 2 guests off, 1 shutting down" in text
    assert text.index("7 s") < text.index("guest shut down in 2.0 s")


def test_a_name_of_a_guest_moves_no_cursor():
    evil = GuestShutdown("uuid-1", "\x1b[2J\nhost1 is drained", "req-1", 0, "off", "guest shut down")
    out = io.StringIO()
    shown = output.Output("table", OutputWrapper(out))
    shown.show([look(evil)])
    shown.print_page(output.render_page([look(evil)]))
    assert ("\x1b" in out.getvalue(), "\nhost1 is drained" in out.getvalue()) == (False, False)


def test_the_words_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "host", "shutdown-guests", "--help"])
    text = capsys.readouterr().out
    for word in ("--parallel", "--timeout", "--no-wait", "--force", "lowest priority first"):
        assert word in " ".join(text.split())
