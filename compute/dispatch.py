"""The wire: names of queues and messages. Nobody else publishes.

A message carries ids and only wakes a worker; the row it names is the truth. So a message that cannot
be sent is logged and forgotten: the relay sends it again.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from cells import brokers
from cells.context import current_alias
from cloud import log
from cloud.celery import app

if TYPE_CHECKING:
    from compute.models import HostCall, Step

logger = log.get(__name__)

RUN_STEP = "stillwater.run_step"
ANSWER_CALL = "stillwater.answer_call"
SCHEDULE = "stillwater.schedule"
MIND_WISHES = "stillwater.mind_wishes"
MIND_DEPARTURES = "stillwater.mind_departures"
CONDUCTOR_QUEUE = "conductor"
SCHEDULER_QUEUE = "scheduler"
REQUESTS, OPS = "requests", "ops"
AHEAD = 5.0  # seconds the clock of a sender may be ahead of the database's
OPS_SINCE = 2  # the Service.version that first had an ops queue
Message = tuple[str, str, dict[str, Any]]  # queue, name, kwargs
_senders = ThreadPoolExecutor(8, thread_name_prefix="dispatch")


def host_queue(host: str, lane: str = REQUESTS) -> str:
    """The queue of a host's lane: requests (nobody has begun) or ops (what begun work still needs)."""
    return f"compute-ops.{host}" if lane == OPS else f"compute.{host}"


def queue_of(host: str, lane: str) -> str:
    """Where a host hears of work on a lane; one too old for the ops queue hears of everything on the other one."""
    if lane != OPS:
        return host_queue(host, lane)
    from compute.models import Service  # noqa: PLC0415  Celery's settings know the wire before Django knows models

    version = Service.objects.filter(binary="nova-compute", host=host).values_list("version", flat=True).first()
    return host_queue(host, lane if version is None or version >= OPS_SINCE else REQUESTS)


def step(row: Step) -> None:
    """Wake whoever is to run this step, once the transaction is committed."""
    queue = queue_of(row.host, row.lane) if row.host else CONDUCTOR_QUEUE
    _after_commit(current_alias(), queue, RUN_STEP, {"step_id": row.pk})


def steps(rows: Collection[Step]) -> None:
    """As `step`, for many steps of hosts: one query, one connection, and nobody waits until they are sent."""
    from compute.models import Service  # noqa: PLC0415  as above

    hosts = {row.host for row in rows}
    found = Service.objects.filter(binary="nova-compute", host__in=hosts).values_list("host", "version")
    old = {host for host, version in found if version < OPS_SINCE}
    alias = current_alias()
    messages = [
        (host_queue(row.host, REQUESTS if row.host in old else row.lane), RUN_STEP, {"step_id": row.pk}) for row in rows
    ]

    def send() -> None:
        url = brokers.url(alias)
        if url and messages:
            _senders.submit(publish_all, url, messages)

    transaction.on_commit(send, using=alias)


def call(row: HostCall) -> None:
    """Wake the host that is to answer this call."""
    _after_commit(current_alias(), queue_of(row.host, OPS), ANSWER_CALL, {"call_id": row.pk})


def wishes(host: str) -> None:
    """Wake a host to read its own service record: somebody wants it to drain, or no more."""
    _after_commit(current_alias(), queue_of(host, OPS), MIND_WISHES, {})


def departures(host: str) -> None:
    """Wake a conductor for the servers that leave a host, or come back: one may have its turn now."""
    _after_commit(current_alias(), CONDUCTOR_QUEUE, MIND_DEPARTURES, {"host": host})


def schedule(server_id: str) -> None:
    """Wake a scheduler for this build request, once the global transaction is committed."""

    def send() -> None:
        publish(settings.BROKER_URL, SCHEDULER_QUEUE, SCHEDULE, {"server_id": server_id})

    transaction.on_commit(send, using="default")


def may_be_late(now: datetime) -> Q:
    """What may be due by `resend_due`: sent some time ago, never, or tomorrow, by a clock that was wrong."""
    long_ago, ahead = now - timedelta(seconds=settings.RESEND_AFTER), now + timedelta(seconds=AHEAD)
    return Q(sent_at__isnull=True) | Q(sent_at__lt=long_ago) | Q(sent_at__gt=ahead)


def resend_due(sent_at: datetime | None, sends: int, now: datetime) -> bool:
    """Whether a message sent that long ago, that often, should go out again (15 s, 30 s … 10 min).

    `now` is the database's, which is asked for once a round.
    """
    if sent_at is None or sent_at > now + timedelta(seconds=AHEAD):
        return True
    wait = min(settings.RESEND_AFTER * 2 ** min(sends, 10) / 2, 600)
    return (now - sent_at).total_seconds() >= wait


def publish(broker_url: str, queue: str, name: str, kwargs: dict[str, Any]) -> bool:
    """Send one message; False when the broker is away (the relay sends it again)."""
    return publish_all(broker_url, [(queue, name, kwargs)])


def publish_all(broker_url: str, messages: Collection[Message]) -> bool:
    """Send messages over one connection; False when the broker is away, or goes (the relay sends the rest again)."""
    if not broker_url:
        return False
    queue = name = ""
    try:
        with brokers.producer(broker_url) as producer:
            for queue, name, kwargs in messages:
                # A Queue and not its name: a name would be looked up among the queues this process consumes.
                app.send_task(name, kwargs=kwargs, producer=producer, queue=brokers.queue(queue), retry=False)  # type: ignore[arg-type]
    except Exception as exc:  # every transport raises its own kinds; none of them may fail the request
        logger.warning("dispatch.broker_away", queue=queue, message=name, error=type(exc).__name__)
        return False
    return True


def _after_commit(alias: str, queue: str, name: str, kwargs: dict[str, Any]) -> None:
    def send() -> None:
        publish(brokers.url(alias), queue, name, kwargs)

    transaction.on_commit(send, using=alias)
