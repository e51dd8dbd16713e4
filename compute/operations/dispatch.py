"""The names of queues and messages, and the only code that publishes messages.

A message carries ids and only wakes a worker; the row it names holds the state. A message that cannot be sent is
logged and its row is marked as not sent: the relay sends it when the broker is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.db import DatabaseError, connections, transaction
from django.db.models import Q

from cells import brokers
from cells.context import current_alias
from cloud import log
from cloud.celery import app

if TYPE_CHECKING:
    from compute.models import HostCall, Step

logger = log.get(__name__)
Row = TypeVar("Row")

RUN_STEP = "stillwater.run_step"
ANSWER_CALL = "stillwater.answer_call"
SCHEDULE = "stillwater.schedule"
FOLLOW_DRAIN_REQUESTS = "stillwater.drain_requests"
RUN_DRAIN_MIGRATIONS = "stillwater.drain_migrations"
CONDUCTOR_QUEUE = "conductor"
SCHEDULER_QUEUE = "scheduler"
REQUESTS, OPS = "requests", "ops"
AHEAD = 5.0  # seconds that a sender's clock may be ahead of the database's
OPS_SINCE = 2  # the first Service.version with an ops queue
Message = tuple[str, str, dict[str, Any]]  # queue, name, kwargs
LONGEST_WAIT = 600.0  # seconds between two messages for one row
ROUND = 5.0  # seconds for the messages of one call: a slow broker must not block the thread's other work
_senders = ThreadPoolExecutor(8, thread_name_prefix="dispatch")


def host_queue(host: str, queue: str = REQUESTS) -> str:
    """Return the name of a host's requests queue (new work) or ops queue (work already begun)."""
    return f"compute-ops.{host}" if queue == OPS else f"compute.{host}"


def queue_of(host: str, queue: str) -> str:
    """Return the queue that a host consumes; a host older than OPS_SINCE has only its requests queue."""
    if queue != OPS:
        return host_queue(host, queue)
    from compute.models import Service  # noqa: PLC0415  Celery's settings import this before Django has models

    version = Service.objects.computes(host=host).values_list("version", flat=True).first()
    return host_queue(host, queue if version is None or version >= OPS_SINCE else REQUESTS)


def step(row: Step) -> None:
    """Wake the worker that is to run this step, once the transaction is committed."""
    alias = current_alias()
    messages = [_wake(row, queue_of(row.host, row.queue) if row.host else CONDUCTOR_QUEUE)]
    transaction.on_commit(lambda: _send_steps(alias, [row], messages), using=alias)


def steps(rows: Collection[Step]) -> None:
    """As `step`, for many steps: one query, one connection, and a background thread sends."""
    alias, woken = current_alias(), list(rows)
    messages = _wakes(woken)

    def in_background() -> None:
        try:
            _send_steps(alias, woken, messages)
        finally:
            connections[alias].close()

    def send() -> None:
        if messages and brokers.url(alias):
            _senders.submit(in_background)

    transaction.on_commit(send, using=alias)


def send(rows: Collection[Step]) -> list[Step]:
    """As `steps`, but now and in this thread; return the steps whose message was sent. Not in a transaction."""
    woken = list(rows)
    return _send_steps(current_alias(), woken, _wakes(woken))


def call(row: HostCall) -> None:
    """Wake the host that is to answer this call, once the transaction is committed."""
    _after_commit(current_alias(), queue_of(row.host, OPS), ANSWER_CALL, {"call_id": row.pk})


def service_changed(host: str) -> None:
    """Wake a host to read its own service record: an operator asked it to drain or undrain."""
    _after_commit(current_alias(), queue_of(host, OPS), FOLLOW_DRAIN_REQUESTS, {})


def drain_migrations_changed(host: str) -> None:
    """Wake a conductor for the drain migrations from or back to a host: there may be room for the next one."""
    _after_commit(current_alias(), CONDUCTOR_QUEUE, RUN_DRAIN_MIGRATIONS, {"host": host})


def schedule(*server_ids: str) -> None:
    """Wake a scheduler for these build requests, once the global transaction is committed."""
    transaction.on_commit(lambda: send_requests(server_ids), using="default")


def send_requests(server_ids: Sequence[str]) -> list[str]:
    """As `schedule`, but now; return the ids whose message was sent. Not in a transaction."""
    from cells.models import BuildRequest  # noqa: PLC0415  as below

    messages: list[Message] = [(SCHEDULER_QUEUE, SCHEDULE, {"server_id": server_id}) for server_id in server_ids]
    sent = _sent_rows(server_ids, publish_all(settings.BROKER_URL, messages))
    unsent = BuildRequest.objects.filter(pk__in=set(server_ids) - set(sent), lease_until__isnull=True)
    _mark(len(sent) < len(server_ids), lambda: unsent.update(sent_at=None, sends=0))
    return sent


def is_due_again(now: datetime) -> Q:
    """Return the filter for rows (with `sent_at` and `sends`) whose message is sent again.

    These are rows that were not sent, or were sent RESEND_AFTER seconds ago (15 by default); the interval doubles with
    each send, up to 10 minutes. `now` is the database's time. A `sent_at` in the future was written by a wrong clock.
    """
    found = Q(sent_at__isnull=True) | Q(sent_at__gt=now + timedelta(seconds=AHEAD))
    for sends in range(1, 12):
        wait = min(settings.RESEND_AFTER * 2.0 ** (sends - 1), LONGEST_WAIT)
        often = {1: Q(sends__lte=1), 11: Q(sends__gte=11)}.get(sends, Q(sends=sends))
        found |= often & Q(sent_at__lte=now - timedelta(seconds=wait))
    return found


def publish(broker_url: str, queue: str, name: str, kwargs: dict[str, Any]) -> bool:
    """Send one message; return False when it was not sent (the relay sends it again)."""
    return publish_all(broker_url, [(queue, name, kwargs)]) == [True]


def publish_all(broker_url: str, messages: Collection[Message]) -> list[bool]:
    """Send messages in turn; return for each whether it was sent.

    The list is shorter than `messages` when the broker is away or ROUND seconds have passed. Without a broker (cell0)
    there is no worker to wake, and all messages count as sent.
    """
    if not broker_url:
        return [True] * len(messages)
    went: list[bool] = []
    end = time.monotonic() + ROUND
    for queue, name, kwargs in messages:
        try:
            with brokers.producer(broker_url) as producer:
                # A Queue and not its name: a name would be looked up among the queues this process consumes.
                app.send_task(name, kwargs=kwargs, producer=producer, queue=brokers.queue(queue), retry=False)  # type: ignore[arg-type]
            went.append(True)
        except brokers.BrokerUnavailable as why:
            logger.warning("dispatch.broker_unavailable", queue=queue, message=name, error=str(why))
            break
        except brokers.Refused as why:
            logger.warning("dispatch.refused", queue=queue, message=name, error=str(why))
            went.append(False)
        if time.monotonic() > end:
            break
    return went


def _wake(row: Step, queue: str) -> Message:
    return queue, RUN_STEP, {"step_id": row.pk}


def _wakes(rows: Collection[Step]) -> list[Message]:
    """Return the messages for steps, with one query for the versions of all hosts."""
    from compute.models import Service  # noqa: PLC0415  as above

    hosts = {row.host for row in rows if row.host and row.queue == OPS}
    found = Service.objects.computes(host__in=hosts).values_list("host", "version")
    old = {host for host, version in found if version < OPS_SINCE} if hosts else set()

    def queue(row: Step) -> str:
        return host_queue(row.host, REQUESTS if row.host in old else row.queue) if row.host else CONDUCTOR_QUEUE

    return [_wake(row, queue(row)) for row in rows]


def _send_steps(alias: str, rows: Sequence[Step], messages: Sequence[Message]) -> list[Step]:
    """Return the steps whose message was sent; mark the others, so that the relay sends them without delay."""
    from compute.models import Step  # noqa: PLC0415  as above

    sent = _sent_rows(rows, publish_all(brokers.url(alias), messages))
    unsent = Step.objects.using(alias).filter(pk__in={row.pk for row in rows} - {row.pk for row in sent})
    queued = unsent.filter(state=Step.State.QUEUED)
    _mark(len(sent) < len(rows), lambda: queued.update(sent_at=None, sends=0))
    return sent


def _sent_rows(rows: Sequence[Row], went: Sequence[bool]) -> list[Row]:
    return [row for row, out in zip(rows, went, strict=False) if out]


def _mark(wanted: bool, update: Callable[[], int]) -> None:
    """Write the unsent mark. If that fails, the row only waits until it is due; the request must not fail."""
    if not wanted:
        return
    try:
        update()
    except DatabaseError as error:
        logger.warning("dispatch.mark_failed", error=repr(error))


def _after_commit(alias: str, queue: str, name: str, kwargs: dict[str, Any]) -> None:
    def send() -> None:
        publish(brokers.url(alias), queue, name, kwargs)

    transaction.on_commit(send, using=alias)
