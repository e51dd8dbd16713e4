"""The lanes of a worker: what it consumes, and how one of them is closed while the others go on.

A host has two: requests (work nobody has begun) and ops (what begun work still needs). Both are queues of
one worker, each on a channel of its own with a prefetch of its own: closing the requests lane does not touch the
other. The tracker lets no more requests begin than there are slots, and no more long ops than there are slots for them,
so that the other ops find a thread: undos, calls. Conductors and schedulers have one lane.

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

OPS_SLOTS = 4  # threads that only ops can have which are not long
TURN_EVERY = 0.05  # seconds between turns of a draining worker's loop, so that it leaves at once


def threads() -> int:
    """Threads of a host's pool."""
    return int(settings.HOST_SLOTS) + int(settings.LONG_SLOTS) + OPS_SLOTS


def open_queues(app: Celery) -> None:
    """Give a host's worker its ops lane. Called once, before the worker starts."""
    app.steps["consumer"].add(OpsQueueConsumer)


class OpsQueueConsumer(bootsteps.ConsumerStep):
    """Consumes the host's ops queue beside the requests queue, which is Celery's own consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """After Celery's consumer is made, and before either consumes. Again after each reconnect."""
        self._on_message = c.create_task_handler()
        super().start(c)

    def get_consumers(self, channel: Any) -> list[Consumer]:
        """One consumer, on the channel it is given."""
        queue = brokers.queue(dispatch.host_queue(settings.HOST, dispatch.OPS))
        return [Consumer(channel, queues=[queue], on_message=self._on_message, prefetch_count=OPS_SLOTS)]

    def _close(self, c: Any, cancel_consumers: bool = True) -> None:
        """After a lost connection there is nothing left to cancel on."""
        if c.connection is not None:
            super()._close(c, cancel_consumers)  # type: ignore[misc]  # not in the stubs


class ConsumerHandle:
    """Celery's consumer of this worker, for threads that want something of it. It works without a broker, too."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._hurry: Any = None  # a timer of the loop, while the process drains
        self._queues = [queue.name for queue in consumer.app.conf.task_queues]

    def close_requests(self) -> None:
        """Take no more of them; messages not begun stay in, or go back to, the broker."""
        for name in self._queues:
            self._consumer.app.amqp.queues.deselect(name)  # or a reconnect would open the lane again
        self._consumer.call_soon(self._cancel)

    def open_requests(self) -> None:
        """Take them again."""
        for name in self._queues:
            queues = self._consumer.app.amqp.queues
            queues.select_add(queues[name])  # for the next connection, when there is none now
        self._consumer.call_soon(self._consume)

    def end(self, exitcode: int) -> None:
        """The stock warm shutdown, at the loop's next turn."""
        state.should_stop = exitcode  # type: ignore[assignment]  # the stubs know its first value only

    def _cancel(self) -> None:
        """In the loop, which nothing wakes and which else turns once a second: from now on more often."""
        if self._hurry is None and self._consumer.hub is not None:
            self._hurry = self._consumer.hub.call_repeatedly(TURN_EVERY, lambda: None)
        for name in self._queues if self._consumer.task_consumer else ():
            self._consumer.task_consumer.cancel_by_queue(name)

    def _consume(self) -> None:
        """In the loop."""
        if self._hurry is not None:
            self._hurry = self._hurry.cancel()
        for name in self._queues if self._consumer.task_consumer else ():
            self._consumer.add_task_queue(name)

