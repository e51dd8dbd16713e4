"""The queues of a worker: what it consumes, and how one of them is closed while the other goes on.

A host has two: requests (new work) and ops (work already begun). One worker consumes both, each on a channel of its
own with a prefetch of its own: closing the requests queue does not touch the other. The tracker lets no more requests
begin than there are slots, and no more long ops than there are slots for them, so that the other ops (undo steps,
calls) find a thread. Conductors and schedulers have one queue.

This is the only module that reaches into Celery's consumer. Tested with Celery and kombu 5.7.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, bootsteps
from celery.worker import state
from django.conf import settings
from kombu import Consumer

from cells import brokers
from compute.operations import dispatch

OPS_SLOTS = 4  # threads reserved for ops that are not long
TURN_EVERY = 0.05  # seconds between turns of a draining worker's event loop, so that it exits at once


def threads() -> int:
    """Return the number of threads in a host's pool."""
    return int(settings.HOST_SLOTS) + int(settings.LONG_SLOTS) + OPS_SLOTS


def open_queues(app: Celery) -> None:
    """Have a host's worker consume its ops queue. Called once, before the worker starts."""
    app.steps["consumer"].add(OpsQueueConsumer)


class OpsQueueConsumer(bootsteps.ConsumerStep):
    """The consumer of a host's ops queue, beside Celery's own consumer of the requests queue."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """Start after Celery's consumer is made, before either consumes. Runs again after each reconnect."""
        self._on_message = c.create_task_handler()
        super().start(c)

    def get_consumers(self, channel: Any) -> list[Consumer]:
        """Return the one consumer, on the given channel."""
        queue = brokers.queue(dispatch.host_queue(settings.HOST, dispatch.OPS))
        return [Consumer(channel, queues=[queue], on_message=self._on_message, prefetch_count=OPS_SLOTS)]

    def _close(self, c: Any, cancel_consumers: bool = True) -> None:
        """Close; after a lost connection there is nothing left to cancel on."""
        if c.connection is not None:
            super()._close(c, cancel_consumers)  # type: ignore[misc]  # not in the stubs


class ConsumerHandle:
    """Access to this worker's Celery consumer from other threads. It works without a broker, too."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._hurry: Any = None  # a timer of the event loop, while the process drains
        self._queues = [queue.name for queue in consumer.app.conf.task_queues]

    def close_requests(self) -> None:
        """Consume no more requests; messages not begun stay in, or go back to, the broker."""
        for name in self._queues:
            self._consumer.app.amqp.queues.deselect(name)  # or a reconnect would open the queue again
        self._consumer.call_soon(self._cancel)

    def open_requests(self) -> None:
        """Consume requests again."""
        for name in self._queues:
            queues = self._consumer.app.amqp.queues
            queues.select_add(queues[name])  # for the next connection, when there is none now
        self._consumer.call_soon(self._consume)

    def end(self, exitcode: int) -> None:
        """Begin Celery's warm shutdown, at the loop's next turn."""
        state.should_stop = exitcode  # type: ignore[assignment]  # the stubs know its first value only

    def _cancel(self) -> None:
        """Runs in the loop. Nothing wakes the loop, which turns once a second: make it turn more often."""
        if self._hurry is None and self._consumer.hub is not None:
            self._hurry = self._consumer.hub.call_repeatedly(TURN_EVERY, lambda: None)
        for name in self._queues if self._consumer.task_consumer else ():
            self._consumer.task_consumer.cancel_by_queue(name)

    def _consume(self) -> None:
        """Runs in the loop."""
        if self._hurry is not None:
            self._hurry = self._hurry.cancel()
        for name in self._queues if self._consumer.task_consumer else ():
            self._consumer.add_task_queue(name)

