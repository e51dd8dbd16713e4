"""The brokers of a cloud, to do harm to: killed, wiped, robbed, and given every message twice.

One of these classes for each kind; `Thief` and `Echo` are the same for both.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from kombu import Consumer

from cells import brokers
from compute.operations import dispatch
from deploy.local.state import CELLS, DOMAINS
from tests.live.cloud import Cloud
from tests.servers.rabbitmq import RabbitMQ


class Redises:
    """The three Redis servers `make up` starts."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def kill(self) -> None:
        """All of them, by SIGKILL."""
        for domain in DOMAINS:
            self._cloud.kill(f"redis-{domain}", signal.SIGKILL)

    def wipe(self) -> None:
        """Of dead ones: what they kept on disk."""
        for domain in DOMAINS:
            shutil.rmtree(self._cloud.state.path("redis", domain, "appendonlydir"))

    def start(self) -> None:
        """Again."""
        self._cloud.up()


class Rabbit:
    """One RabbitMQ, started beside the cloud."""

    def __init__(self, server: RabbitMQ) -> None:
        self._server = server
        self.start = server.start
        self.wipe = server.wipe

    def kill(self) -> None:
        """By SIGKILL."""
        self._server.stop(signal.SIGKILL)

    @contextmanager
    def short_of_memory(self) -> Iterator[None]:
        """It blocks whoever publishes."""
        self._server.control("set_vm_memory_high_watermark", "absolute", "1")
        yield
        self._server.control("set_vm_memory_high_watermark", "0.4")


def queues(cloud: Cloud) -> dict[str, list[str]]:
    """Every queue of every failure domain."""
    found = {"global": [dispatch.SCHEDULER_QUEUE]}
    for cell in CELLS:
        found[cell] = [dispatch.CONDUCTOR_QUEUE]
    for host, cell in cloud.state.hosts.items():
        found[cell] += [dispatch.host_queue(host), dispatch.host_queue(host, dispatch.OPS)]
    return found


class _Pest(ABC):
    """Goes on in the background for the length of a `with`."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _go_on(self) -> None:
        """What it does until it is stopped."""


class Thief(_Pest):
    """Takes every second message away from the workers: each is lost, until `give_back`."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self.stolen: list[tuple[str, str, str, dict[str, Any]]] = []

    def give_back(self) -> None:
        """All of them, late, and each twice."""
        for url, queue, name, kwargs in self.stolen * 2:
            assert dispatch.publish(url, queue, name, kwargs)

    def _go_on(self) -> None:
        with ExitStack() as stack:
            ambushes = [self._ambush(stack, domain, names) for domain, names in queues(self.cloud).items()]
            while not self._stop.is_set():
                for connection in ambushes:
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.02)

    def _ambush(self, stack: ExitStack, domain: str, names: list[str]) -> Any:
        """Consume beside the workers; the broker deals to all in turn."""
        url = self.cloud.state.broker_url(domain)

        def take(message: Any) -> None:
            message.ack()
            _, kwargs, _ = message.decode()
            self.stolen.append((url, message.delivery_info["routing_key"], message.headers["task"], kwargs))

        connection = stack.enter_context(brokers.connection(url))
        consumed = [brokers.queue(name) for name in names]
        stack.enter_context(Consumer(connection.channel(), consumed, on_message=take, accept=["json"]))
        return connection


class Echo(_Pest):
    """Sends a copy of every message whose work is not done, to both queues of its host."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(cloud)
        self.sent = 0

    def _go_on(self) -> None:
        while not self._stop.wait(0.05):
            self._send_all()

    def _send_all(self) -> None:
        for (server_id,) in self._ask("global", "SELECT server_id FROM cells_buildrequest"):
            self._send("global", dispatch.SCHEDULER_QUEUE, dispatch.SCHEDULE, {"server_id": server_id})
        for cell in CELLS:
            steps = "SELECT id, host FROM compute_step WHERE state IN ('queued', 'running')"
            for step_id, host in self._ask(cell, steps):
                queues = [dispatch.host_queue(host, queue) for queue in (dispatch.REQUESTS, dispatch.OPS)]
                for queue in queues if host else [dispatch.CONDUCTOR_QUEUE]:
                    self._send(cell, queue, dispatch.RUN_STEP, {"step_id": step_id})

    def _send(self, domain: str, queue: str, name: str, kwargs: dict[str, Any]) -> None:
        self.sent += dispatch.publish(self.cloud.state.broker_url(domain), queue, name, kwargs)

    def _ask(self, database: str, question: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.cloud.state.path(f"{database}.sqlite3"), timeout=30)
        try:
            return connection.execute(question).fetchall()
        finally:
            connection.close()
