"""What a RabbitMQ can do to a sender: say nothing while it is short of memory or stopped, and refuse one queue."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from kombu import Exchange, Queue

from cells import broker_circuit_breaker, brokers
from compute.operations import dispatch
from tests.live.brokers import Rabbit
from tests.live.cloud import eventually
from tests.machine import fair
from tests.servers import rabbitmq

pytestmark = pytest.mark.chaos
SECONDS = 30


@pytest.fixture(scope="module")
def rabbit():
    with rabbitmq.server() as server:
        yield server
    broker_circuit_breaker.reset()


def test_a_rabbitmq_short_of_memory_costs_the_first_message_a_second_and_the_others_nothing(rabbit):
    """It takes connections all the while, so a look that only connects would find it well."""
    url = rabbit.url("cell1")
    assert wake(url)
    with Rabbit(rabbit).short_of_memory():
        costs_one_message(url)
        assert not broker_circuit_breaker.wait_until_up(url, 2), "a look found it well"
    is_back(url)


def test_a_rabbitmq_that_hangs_costs_the_first_message_a_second_and_the_others_nothing(rabbit):
    url = rabbit.url("cell1")
    assert wake(url)
    os.kill(rabbit._server.pid, signal.SIGSTOP)
    eventually("its threads are stopped", lambda: psutil.Process(rabbit._server.pid).status() == "stopped", pause=0.01)
    try:
        costs_one_message(url)
    finally:
        os.kill(rabbit._server.pid, signal.SIGCONT)
    is_back(url)


def test_a_queue_that_rabbitmq_refuses_is_no_reason_to_send_nothing_to_the_others(rabbit):
    url = rabbit.url("cell2")
    odd = Queue("odd", exchange=Exchange(""), routing_key="odd", durable=False, auto_delete=True)
    with brokers.connection(url) as wire:
        odd.bind(wire.channel()).declare()
        messages = [(queue, dispatch.RUN_STEP, {"step_id": 1}) for queue in ("q", "odd", "q")]
        assert dispatch.publish_all(url, messages) == [True, False, True]
    assert not broker_circuit_breaker.known_down(url)


def wake(url: str) -> bool:
    return dispatch.publish(url, "q", dispatch.RUN_STEP, {"step_id": 1})


def costs_one_message(url: str) -> None:
    began = time.monotonic()
    assert not wake(url)
    assert time.monotonic() - began < fair(2.5)
    began = time.monotonic()
    assert not any(wake(url) for _ in range(100))
    assert time.monotonic() - began < fair(0.5)


def is_back(url: str) -> None:
    assert broker_circuit_breaker.wait_until_up(url, SECONDS)
    assert wake(url)
