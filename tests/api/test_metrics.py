"""GET /metrics, on real databases and real brokers, one of which may be away."""

from __future__ import annotations

import socket
import subprocess
import time
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from kombu import Connection
from prometheus_client.parser import text_string_to_metric_families

from cells.context import target_cell
from cells.models import BuildRequest, Cell, CellOutage, DeferredDelete, DeferredEvent, HostMapping
from cloud.metrics import DECLARED
from compute.models import Service, Step
from compute.operations import journal
from compute.virt.shutdown_timer import ShutdownTimer
from deploy.local.ports import any_free
from tests.cells import rows
from tests.machine import fair

SECONDS = 20
TOKEN = "a-token-for-scrapes"


@pytest.fixture(scope="module")
def broker():
    """The URL of a Redis of this module's own."""
    port = any_free()
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "Redis does not start"
            time.sleep(0.05)
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait(SECONDS)


@pytest.fixture
def mute():
    """The URL of a broker that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@pytest.fixture
def fleet(cells):
    """A host in cell1 that works, one in cell2 that drains, and a server with an operation on each."""
    now = timezone.now()
    rows.service(cells["cell1"], "h1", last_seen_up=now - timedelta(seconds=7))
    rows.service(cells["cell2"], "h2", draining_since=now - timedelta(seconds=30), in_progress=2)
    HostMapping.objects.create(host="h2", cell=cells["cell2"])
    operation(cells["cell1"], "reboot", "requests", age=50)
    operation(cells["cell1"], "reboot", "requests", age=500)
    operation(cells["cell1"], "stop", "ops", age=5, state=Step.State.RUNNING)
    operation(cells["cell2"], "stop", "requests", age=9, state=Step.State.DONE)
    return cells


def operation(cell, name, queue, *, age, state=Step.State.QUEUED):
    server = rows.server(cell)
    with target_cell(cell):
        action = journal.open_action(
            server, name=name, key=name.title(), request_id="req-1", user_id="u", project_id="p"
        )
        step = journal.open_step(action, name=name, event=f"compute_{name}", host="h1", queue=queue)
        Step.objects.filter(pk=step.pk).update(state=state)
        type(action).objects.filter(pk=action.pk).update(started_at=timezone.now() - timedelta(seconds=age))


def send(url, queue, messages):
    with Connection(url) as connection, connection.SimpleQueue(queue) as waiting:
        for _ in range(messages):
            waiting.put({})


def scrape(**headers):
    return Client().get("/metrics", **headers)


def lines(name, answer=None):
    """{labels, in the order they are declared: value} of one metric."""
    answer = answer or scrape()
    assert answer.status_code == 200, answer.content
    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    [labels] = [one.labels for one in DECLARED if one.name == f"stillwater_{name}"]
    samples = families[f"stillwater_{name}"].samples
    return {tuple(one.labels[label] for label in labels): one.value for one in samples}


def test_operations_in_progress_by_kind_and_age(fleet):
    assert lines("operations") == {
        ("cell1", "reboot", "requests", "queued"): 2,
        ("cell1", "stop", "ops", "running"): 1,
    }
    oldest = lines("operation_oldest_seconds")
    assert oldest["cell1", "reboot", "requests", "queued"] == pytest.approx(500, abs=SECONDS)
    assert oldest["cell1", "stop", "ops", "running"] == pytest.approx(5, abs=SECONDS)


def test_a_server_nobody_has_placed_yet_is_an_operation_too(cells):
    since = timezone.now() - timedelta(seconds=40)
    BuildRequest.objects.create(
        server_id="s", project_id="p", user_id="u", request_id="req-1", instance={}, created_at=since
    )
    assert lines("operations") == {("global", "create", "scheduler", "queued"): 1}
    assert lines("operation_oldest_seconds").popitem()[1] == pytest.approx(40, abs=SECONDS)


def test_services_their_beats_and_their_drains(fleet):
    assert lines("service_state") == {
        ("cell1", "nova-compute", "h1", "up"): 1,
        ("cell2", "nova-compute", "h2", "draining"): 1,
    }
    assert lines("heartbeat_age_seconds")["cell1", "nova-compute", "h1"] == pytest.approx(7, abs=SECONDS)
    assert lines("service_operations")["cell2", "nova-compute", "h2"] == 2
    drains = lines("service_drain_seconds")
    assert list(drains) == [("cell2", "nova-compute", "h2")]
    assert drains.popitem()[1] == pytest.approx(30, abs=SECONDS)


def test_a_drain_that_is_over_keeps_its_length_while_the_process_stays(fleet):
    begun = timezone.now() - timedelta(hours=2)
    with target_cell(fleet["cell2"]):
        Service.objects.update(draining_since=begun, drained_at=begun + timedelta(seconds=12))
    answer = scrape()
    assert lines("service_state", answer)["cell2", "nova-compute", "h2", "drained"] == 1
    assert lines("service_drain_seconds", answer)["cell2", "nova-compute", "h2"] == 12


def test_one_that_ended_in_order_is_no_alarm(fleet):
    begun = timezone.now() - timedelta(hours=2)
    with target_cell(fleet["cell2"]):
        Service.objects.update(last_seen_up=begun, ended_at=begun + timedelta(seconds=12))
    said = [line for line in scrape().content.decode().splitlines() if 'host="h2"' in line]
    assert said == [
        'stillwater_service_state{binary="nova-compute",cell="cell2",host="h2",state="ended"} 1.0',
    ]


def test_one_that_stopped_beating_is_down_even_if_it_drained(fleet):
    with target_cell(fleet["cell2"]):
        Service.objects.update(last_seen_up=timezone.now() - timedelta(hours=1))
    answer = scrape()
    assert lines("service_state", answer)["cell2", "nova-compute", "h2", "down"] == 1
    assert lines("heartbeat_age_seconds", answer)["cell2", "nova-compute", "h2"] > 3000


def test_servers_by_state(cells):
    for state in ("active", "active", "error"):
        rows.server(cells["cell1"], vm_state=state)
    rows.server(cells["cell1"], vm_state="deleted", deleted=True)
    assert lines("servers") == {("cell1", "active"): 2, ("cell1", "error"): 1}


def test_guests_whose_clock_runs_by_host_and_the_worst_of_them(fleet):
    now = time.time()
    for name, left in (("stop", 30), ("stop", -400), ("delete", 30)):
        operation(fleet["cell1"], name, "ops", age=5, state=Step.State.WAITING)
        with target_cell(fleet["cell1"]):
            deadline = timezone.now() + timedelta(seconds=left)
            timer = ShutdownTimer(now - 9, now + left, 10).facts
            Step.objects.filter(pk=Step.objects.latest("pk").pk).update(timer=timer, deadline=deadline)
    operation(fleet["cell2"], "shutdown", "ops", age=5, state=Step.State.WAITING)  # for others, not for a guest
    assert lines("guests_shutting_down") == {("cell1", "h1"): 3}
    assert lines("guest_overdue_seconds")["cell1", "h1"] == pytest.approx(400, abs=SECONDS)
    with target_cell(fleet["cell1"]):  # one that joins is no second guest
        later = timezone.now() + timedelta(hours=1)
        Step.objects.filter(state=Step.State.WAITING).update(server_id="s", deadline=later)
    assert lines("guests_shutting_down") == {("cell1", "h1"): 1}
    assert lines("guest_overdue_seconds") == {("cell1", "h1"): 0}
    assert lines("operations")["cell1", "stop", "ops", "waiting"] == 2


def test_messages_waiting_in_each_lane(fleet, broker, settings):
    Cell.objects.filter(pk=fleet["cell2"].pk).update(broker_url=broker)
    settings.BROKER_URL = f"{broker[:-1]}1"
    send(broker, "compute.h2", 3)
    send(broker, "compute-ops.h2", 1)
    send(settings.BROKER_URL, "scheduler", 2)
    answer = scrape()
    assert lines("queue_depth", answer) == {
        ("cell2", "conductor", ""): 0, ("cell2", "requests", "h2"): 3, ("cell2", "ops", "h2"): 1,
        ("global", "scheduler", ""): 2,
    }  # fmt: skip
    assert lines("cell_up", answer)["cell2", "broker"] == 1


def test_a_cell_that_is_away_has_one_line(fleet, down_cell, broker):
    rows.server(fleet["cell1"])
    Cell.objects.filter(pk=down_cell.pk).update(broker_url=broker)
    answer = scrape()
    up = lines("cell_up", answer)
    assert up["cell3", "database"] == 0
    assert up["cell3", "broker"] == 1  # it lives on, and says so
    assert up["cell1", "database"] == 1
    said = [line for line in answer.content.decode().splitlines() if 'cell="cell3"' in line]
    assert [line.split("{")[0].removeprefix("stillwater_") for line in said] == [
        "cell_up", "cell_up", "cell_answer_seconds", "cell_breakers_open", "cell_down_seconds", "servers_unknown",
        "queue_depth",
    ]  # fmt: skip


def test_what_a_cell_that_is_down_means_and_what_waits_for_it(fleet, down_cell):
    now = timezone.now()
    for number in range(3):
        rows.mapping(down_cell, f"unknown-{number}")
    who = {"project_id": "p1", "user_id": "u1", "request_id": "req-1"}
    DeferredDelete.objects.create(server_id="d", cell=down_cell, asked_at=now - timedelta(seconds=90), **who)
    for age in (20, 60):
        DeferredEvent.objects.create(
            server_id="e", cell=down_cell, name="network-changed", status="completed",
            received_at=now - timedelta(seconds=age), **who,
        )  # fmt: skip
    for name, began, confirmed, ended in (
        ("api 1", 100, 1, None), ("api 2", 95, 2, None), ("api 3", 500, 400, None), ("api 4", 900, 800, 800)
    ):
        CellOutage.objects.create(
            cell=down_cell, seen_by=name, reason="cut off", began_at=now - timedelta(seconds=began),
            confirmed_at=now - timedelta(seconds=confirmed), ended_at=ended and now - timedelta(seconds=ended),
        )  # fmt: skip
    answer = scrape()
    assert lines("cell_breakers_open", answer) == {("cell0",): 0, ("cell1",): 0, ("cell2",): 0, ("cell3",): 2}
    assert 100 <= lines("cell_down_seconds", answer)[("cell3",)] < 100 + SECONDS
    assert lines("servers_unknown", answer) == {("cell0",): 0, ("cell1",): 0, ("cell2",): 0, ("cell3",): 3}
    assert lines("deferred_requests", answer) == {("cell3", "delete"): 1, ("cell3", "event"): 2}
    oldest = lines("deferred_request_oldest_seconds", answer)
    assert 90 <= oldest["cell3", "delete"] < 90 + SECONDS
    assert 60 <= oldest["cell3", "event"] < 60 + SECONDS
    answered = lines("cell_answer_seconds", answer)
    assert set(answered) == {("cell0", "database"), ("cell1", "database"), ("cell2", "database")}
    assert all(0 < seconds < SECONDS for seconds in answered.values())


@pytest.mark.parametrize("how", ["refused", "mute"])
def test_a_broker_that_is_away_costs_no_more_than_the_deadline(fleet, mute, settings, how):
    url = mute if how == "mute" else f"redis://127.0.0.1:{any_free()}/0"
    Cell.objects.filter(pk=fleet["cell1"].pk).update(broker_url=url)
    settings.CELL_TIMEOUT = 3.0
    for _ in range(3):
        begun = time.monotonic()
        answer = scrape()
        assert time.monotonic() - begun < fair(2 * settings.CELL_TIMEOUT + SECONDS / 4)
        assert lines("cell_up", answer)["cell1", "broker"] == 0
        assert lines("cell_up", answer)["cell1", "database"] == 1
        assert ("cell1", "reboot", "requests", "queued") in lines("operations", answer)
        assert not [key for key in lines("queue_depth", answer) if key[0] == "cell1"]


def test_a_hundred_operations_cost_as_many_queries_as_three(fleet, queries):
    few = queries(scrape)
    for number in range(50):
        operation(fleet["cell1"], "pause", "requests", age=number)
        rows.service(fleet["cell1"], f"more{number}")
    assert queries(scrape) == few
    assert few <= 6 + 7 * len(fleet)


def test_without_a_token_it_is_for_this_machine(cells):
    assert scrape(REMOTE_ADDR="::1").status_code == 200
    assert scrape(REMOTE_ADDR="192.0.2.7").status_code == 403
    assert scrape(REMOTE_ADDR="").status_code == 403
    assert scrape(HTTP_X_FORWARDED_FOR="192.0.2.7").status_code == 403, "a proxy on this machine asks for others"
    assert Client().post("/metrics").status_code == 405


def test_with_a_token_it_is_for_whoever_has_it(cells, settings, caplog):
    settings.METRICS_TOKEN = TOKEN
    assert scrape().status_code == 401, "loopback is no token"
    for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"):
        refused = scrape(HTTP_AUTHORIZATION=wrong)
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer"), wrong
        assert TOKEN not in refused.content.decode()
    right = scrape(HTTP_AUTHORIZATION=f"Bearer {TOKEN}", REMOTE_ADDR="192.0.2.7", HTTP_X_FORWARDED_FOR="192.0.2.7")
    assert right.status_code == 200
    assert TOKEN not in right.content.decode() + caplog.text


def test_no_secret_is_among_the_labels(fleet, settings):
    Cell.objects.filter(pk=fleet["cell1"].pk).update(broker_url=f"redis://:hunter2@127.0.0.1:{any_free()}/0")
    shown = scrape().content.decode()
    assert 'cell="cell1",part="broker"} 0' in shown
    assert "hunter2" not in shown
    assert settings.SECRET_KEY not in shown


def test_every_metric_says_what_it_is(cells):
    answer = scrape()
    families = list(text_string_to_metric_families(answer.content.decode()))
    assert answer["Content-Type"].startswith("text/plain; version=")
    assert all(family.name.startswith("stillwater_") and family.documentation for family in families)
