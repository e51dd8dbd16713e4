"""Publishing to brokers that are not there, or say nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from cells import broker_circuit_breaker, brokers
from cells.context import target_cell
from cells.models import BuildRequest
from cloud import metrics
from compute.builds import leases
from compute.hosts import drain_handback
from compute.models import InstanceAction, Step
from compute.operations import dispatch, journal, recovery
from deploy.local.ports import any_free
from tests.api.queries import counted
from tests.machine import fair

NOBODY = "redis://:secret@127.0.0.1:1/0"
SECONDS = 20


@pytest.fixture(autouse=True)
def _no_breaker_is_open():
    broker_circuit_breaker.reset()
    yield
    broker_circuit_breaker.reset()


@pytest.fixture
def silent():
    """The port of something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class Redis:
    """A real one, which can be made to say nothing."""

    def __init__(self) -> None:
        self.port = any_free()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + SECONDS
        while not dispatch.publish(self.url, "first", dispatch.RUN_STEP, {"step_id": 0}):
            assert time.monotonic() < deadline, "Redis does not start"
            broker_circuit_breaker.wait_until_up(self.url, 1)

    def fall_silent(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def speak(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def depth(self, queue: str) -> int:
        return brokers.depths(self.url, [queue])[queue]


@pytest.fixture
def redis():
    one = Redis()
    yield one
    one.process.kill()
    one.process.wait(SECONDS)


@pytest.fixture
def cell1(cells):
    cell = cells["cell1"]
    yield cell
    brokers.register_url(cell.alias, "")


def test_a_broker_that_is_away_costs_a_request_no_time():
    """Every boot and delete took two seconds while a Redis was down: kombu slept before its second try."""
    began = time.monotonic()
    assert dispatch.publish(NOBODY, dispatch.SCHEDULER_QUEUE, dispatch.SCHEDULE, {}) is False
    assert time.monotonic() - began < fair(1)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/0", "amqp://u:p@127.0.0.1:{}/x"], ids=["redis", "rabbitmq"])
def test_a_broker_that_says_nothing_costs_one_request_a_second_and_all_others_nothing(url, silent):
    """It cost every request five seconds, as Redis is asked with the patience of a worker."""
    assert seconds(lambda: wake(url.format(silent))) < fair(2.5)
    assert seconds(lambda: [wake(url.format(silent)) for _ in range(100)]) < fair(0.5)


def test_requests_that_come_at_once_to_a_silent_broker_wait_together(silent):
    threads = [threading.Thread(target=wake, args=(f"redis://127.0.0.1:{silent}/0",)) for _ in range(24)]

    def all_of_them() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert seconds(all_of_them) < fair(2.5)


def test_a_broker_that_is_down_is_looked_at_by_one_thread_and_by_no_request(redis):
    redis.fall_silent()
    for _ in range(20):
        assert not wake(redis.url)
    assert sum(thread.name == "broker-probe" for thread in threading.enumerate()) == 1
    told = threading.Event()
    broker_circuit_breaker.when_up(told.set)
    redis.speak()
    assert told.wait(SECONDS)
    broker_circuit_breaker._then.remove(told.set)
    assert wake(redis.url)


def test_a_redis_that_is_full_is_down_until_it_can_be_written_to(redis):
    """It answers a PING, so a look that only asks would close the breaker for the next message to open it."""
    full(redis, "100")
    assert not wake(redis.url)
    assert not broker_circuit_breaker.wait_until_up(redis.url, 1.5)
    full(redis, "0")
    assert broker_circuit_breaker.wait_until_up(redis.url, SECONDS)
    assert wake(redis.url)


# -- the relay of a cell


def test_late_messages_to_a_silent_broker_do_not_hold_up_a_cells_housekeeping(cell1, silent):
    """Each cost five seconds: 500 of them 42 minutes, in which no conductor took over a dead one's work."""
    cell1.broker_url = f"redis://127.0.0.1:{silent}/0"
    with target_cell(cell1):
        late_steps(cell1, 300)
        before = metrics.RESENT._value.get()
        for patience in (2.5, 1):
            began = time.monotonic()
            assert recovery.relay() == 0
            assert time.monotonic() - began < fair(patience)
        assert not Step.objects.filter(sends__gt=1).exists(), "what was not sent counts as sent"
        assert metrics.RESENT._value.get() == before


def test_messages_flow_again_within_seconds_when_the_broker_is_back(cell1, redis):
    cell1.broker_url = redis.url
    with target_cell(cell1):
        late_steps(cell1, 300)
        redis.fall_silent()
        assert recovery.relay() == 0
        new = asked(cell1)
        assert (new.sent_at, new.sends) == (None, 0), "a message that was not sent counts as sent"
        redis.speak()
        assert broker_circuit_breaker.wait_until_up(redis.url, SECONDS)
        assert recovery.relay() == 301
        assert set(Step.objects.values_list("sends", flat=True)) == {1}
        assert recovery.relay() == 0
        assert redis.depth("compute.host1") == 301


def test_a_request_sent_to_a_silent_broker_is_due_at_once_when_it_is_back(cell1, redis):
    """It waited for a quarter of a minute, as if its message were on its way."""
    cell1.broker_url = redis.url
    redis.fall_silent()
    with target_cell(cell1):
        asked(cell1)
        redis.speak()
        assert broker_circuit_breaker.wait_until_up(redis.url, SECONDS)
        assert recovery.relay() == 1


def test_build_requests_are_not_sent_as_long_as_the_global_broker_says_nothing(cells, silent, redis, settings):
    now = timezone.now()
    BuildRequest.objects.bulk_create(
        BuildRequest(
            server_id=f"server-{n}", project_id="p", user_id="u", request_id="r", instance={}, action={},
            created_at=now, sent_at=now - timedelta(seconds=16), sends=1,
        )
        for n in range(100)
    )  # fmt: skip
    settings.BROKER_URL = f"redis://127.0.0.1:{silent}/0"
    assert seconds(lambda: leases.relay() == 0 or pytest.fail("sent")) < fair(2.5)
    assert not BuildRequest.objects.filter(sends__gt=1).exists()
    settings.BROKER_URL = redis.url
    with counted() as seen:
        assert leases.relay() == 100
    assert len(seen["default"]) <= 4, seen
    assert redis.depth(dispatch.SCHEDULER_QUEUE) == 100
    assert leases.relay() == 0


def test_what_is_sent_again_costs_the_same_queries_however_much_it_is(cell1, monkeypatch):
    """A query for the service of each message; and the relay loaded every late step of a cell to take 500 of them."""

    def cost(count: int, work) -> int:
        Step.objects.all().delete()
        late_steps(cell1, count)
        with counted() as seen:
            assert work() == min(count, 20)
        steps = [sql for sql, _ in seen[cell1.alias] if "SELECT" in sql and "compute_step" in sql]
        assert all("LIMIT" in sql for sql in steps), steps
        return len(seen[cell1.alias])

    monkeypatch.setattr(recovery, "BATCH", 20)
    monkeypatch.setattr(drain_handback, "BATCH", 20)
    works = (recovery.relay, lambda: drain_handback.send_again("host1"), lambda: drain_handback.send_next("host1", 20))
    with target_cell(cell1):
        for work in works:
            assert cost(2, work) == cost(60, work) <= 8


def test_what_a_dead_worker_left_is_sent_with_one_query_for_the_services(cell1):
    def cost(count: int) -> int:
        Step.objects.all().delete()
        late_steps(cell1, count)
        Step.objects.update(state="running", worker="nova-compute@host1", incarnation="a", queue="ops")
        with counted() as seen:
            assert recovery.recover("nova-compute@host1", "b", tuple, dispatch.OPS) == count
        return sum("compute_service" in sql for sql, _ in seen[cell1.alias])

    with target_cell(cell1):
        assert cost(2) == cost(30) <= 2


def wake(url: str) -> bool:
    return dispatch.publish(url, "q", dispatch.RUN_STEP, {"step_id": 1})


def seconds(work) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def full(redis: Redis, limit: str) -> None:
    subprocess.run(
        ["redis-cli", "-p", str(redis.port), "config", "set", "maxmemory", limit],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def late_steps(cell, count: int) -> None:
    """Queued on both queues of a host, each of a server of its own, sent once and then lost."""
    now = timezone.now()
    action = action_of("a server")
    Step.objects.bulk_create(
        Step(
            action=action, server_id=f"server-{n}", name="pause", event="e", host="host1", queue="requests",
            queued_at=now, sent_at=now - timedelta(seconds=16), sends=1,
        )
        for n in range(count)
    )  # fmt: skip


def asked(cell) -> Step:
    """A step that a request opens now."""
    with transaction.atomic(using=cell.alias):
        step = journal.open_step(action_of("new"), name="pause", event="e", host="host1", queue="requests")
    step.refresh_from_db()
    return step


def action_of(server_id: str) -> InstanceAction:
    now = timezone.now()
    return InstanceAction.objects.create(
        server_id=server_id, action="pause", key="Pause", request_id="r", user_id="u", project_id="p",
        started_at=now, updated_at=now,
    )  # fmt: skip
