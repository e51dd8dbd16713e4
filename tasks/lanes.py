"""The two lanes of a host: requests (work nobody has begun) and ops (what begun work still needs).

Both are queues of one worker, but each on a channel of its own with a prefetch of its own. So requests
that fill their slots leave the ops lane its threads, and an operation never waits behind the requests that
wait for it. Tested with Celery and kombu 5.7.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, bootsteps
from django.conf import settings
from kombu import Consumer

from cells import brokers
from compute import dispatch

OPS_SLOTS = 4  # threads that only ops can have


def threads() -> int:
    """Threads of a host's pool."""
    return int(settings.HOST_SLOTS) + OPS_SLOTS


def open_lanes(app: Celery) -> None:
    """Give a host's worker its ops lane. Called once, before the worker starts."""
    app.steps["consumer"].add(OpsLane)


class OpsLane(bootsteps.ConsumerStep):
    """Consumes the host's ops queue beside the requests queue, which is Celery's own consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """After Celery's consumer is made, and before either consumes. Again after each reconnect."""
        _bound_requests(c)
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


def _bound_requests(c: Any) -> None:
    """Requests take no more than their slots: as they are acknowledged when they end, prefetch is the bound."""
    c.initial_prefetch_count = settings.HOST_SLOTS
    c.task_consumer.qos(prefetch_count=settings.HOST_SLOTS)
    c.qos.value = settings.HOST_SLOTS
