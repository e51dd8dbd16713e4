"""The metrics of the whole cloud for a Prometheus scrape of the API: seven queries per cell, one probe per broker."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cells import broker_probes, brokers, outages, probes, scatter
from cells.models import BuildRequest, Cell, DeferredDelete, DeferredEvent, HostMapping, InstanceMapping
from cloud import log, metrics
from compute.hosts import drain_moves
from compute.models import Instance, Service, Step
from compute.models.host import COMPUTE
from compute.operations import dispatch

logger = log.get(__name__)
GLOBAL = "global"
Lines = list[tuple[metrics.DeclaredMetric, tuple[str, ...], float]]



@dataclass(frozen=True, slots=True)
class CellSample:
    """What one cell's database reports, and how long it took to answer."""

    seconds: float
    operations: list[tuple[str, str, str, int, datetime]]  # action, queue, state, count, oldest
    services: list[Service]
    servers: list[tuple[str, int]]
    drain_migrations: dict[str, dict[str, int]]  # drain migrations by host and state
    shutdowns: list[tuple[str, int, datetime]]  # host, running shutdown timers, first deadline


class CloudCollector(Collector):
    """The Prometheus collector of all cells. Never raises because a database or broker is away."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield all families in their declared order, also empty ones: an absent sample means none."""
        families = {one.name: one.family() for one in metrics.DECLARED if one.where == "API"}
        for declared, labels, value in _lines():
            families[declared.name].add_metric(labels, value)
        yield from families.values()


def _lines() -> Lines:
    try:
        cells, mapped, build_requests = _global()
    except DatabaseError as error:
        logger.warning("metrics.global_database_unavailable", error=repr(error))
        return [(metrics.CELL_UP, (GLOBAL, "database"), 0)]
    gathered = scatter.gather(cells, _read)
    lines: Lines = [(metrics.CELL_UP, (GLOBAL, "database"), 1), *_operations(GLOBAL, build_requests)]
    brokers_of = {GLOBAL: (settings.BROKER_URL, [dispatch.SCHEDULER_QUEUE])}
    for cell in cells:
        read = gathered.answers.get(cell.id)
        lines.append((metrics.CELL_UP, (cell.name, "database"), read is not None))
        if read is not None:
            lines.append((metrics.CELL_ANSWER_SECONDS, (cell.name, "database"), read.seconds))
        announced = {service.host for service in read.services if service.binary == COMPUTE} if read else set()
        brokers_of[cell.name] = (cell.broker_url, _queues(announced | mapped.get(cell.id, set())))
        if read is not None:
            lines += [*_operations(cell.name, read.operations), *_services(cell.name, read.services)]
            lines += _shutdowns(cell.name, read.shutdowns)
            lines += [(metrics.SERVERS, (cell.name, state), count) for state, count in read.servers]
            lines += [
                (metrics.DRAIN_MIGRATIONS, (cell.name, host, state), count)
                for host, states in read.drain_migrations.items() for state, count in states.items()
            ]  # fmt: skip
    return lines + _down(cells, gathered.down) + _depths(brokers_of)


def _global() -> tuple[list[Cell], dict[str, set[str]], list[tuple[str, str, str, int, datetime]]]:
    mapped: dict[str, set[str]] = {}
    for host, cell_id in HostMapping.objects.values_list("host", "cell_id"):
        mapped.setdefault(cell_id, set()).add(host)
    waiting = BuildRequest.objects.aggregate(count=Count("pk"), since=Min("created_at"))
    unplaced = [("create", "scheduler", "queued", waiting["count"], waiting["since"])] if waiting["count"] else []
    return list(Cell.objects.order_by("name")), mapped, unplaced


def _read(cell: Cell) -> CellSample:
    seconds = probes.timed(cell)
    open_steps = Step.objects.open()
    grouped = open_steps.values_list("action__action", "queue", "state").annotate(
        count=Count("action", distinct=True), since=Min("action__started_at")
    )
    living = Instance.objects.living().values_list("vm_state").annotate(count=Count("id"))
    services = list(Service.objects.order_by("id"))
    guests = open_steps.filter(state=Step.State.WAITING, timer__isnull=False, deadline__isnull=False)
    timers = guests.values_list("host").annotate(count=Count("server_id", distinct=True), first=Min("deadline"))
    return CellSample(
        seconds, list(grouped.order_by()), services, list(living.order_by()), drain_moves.counts(),
        list(timers.order_by()),
    )  # fmt: skip


def _down(cells: list[Cell], down: Collection[str]) -> Lines:
    """Effects of down cells on users, and the requests that wait for them. From the global database alone."""
    now, lines = timezone.now(), Lines()
    open_now, names = outages.open_counts(), {cell.id: cell.name for cell in cells}
    living = InstanceMapping.objects.filter(cell__in=down).exclude(queued_for_delete=True).order_by()
    unknown = dict(living.values_list("cell").annotate(count=Count("pk")))
    for cell_id, name in names.items():
        count, since = open_now.get(cell_id, (0, now))
        lines += [
            (metrics.CELL_BREAKERS_OPEN, (name,), count), (metrics.CELL_DOWN_SECONDS, (name,), _seconds(since, now)),
            (metrics.SERVERS_UNKNOWN, (name,), unknown.get(cell_id, 0)),
        ]  # fmt: skip
    for kind, model, asked in (("delete", DeferredDelete, "asked_at"), ("event", DeferredEvent, "received_at")):
        waiting = model.objects.filter(cell__in=cells).order_by().values_list("cell")
        for cell_id, count, since in waiting.annotate(count=Count("pk"), since=Min(asked)):
            labels = (names[cell_id], kind)
            lines.append((metrics.DEFERRED_REQUESTS, labels, count))
            lines.append((metrics.DEFERRED_REQUEST_OLDEST, labels, _seconds(since, now)))
    return lines


def _operations(cell: str, found: Iterable[tuple[str, str, str, int, datetime]]) -> Lines:
    now, lines = timezone.now(), Lines()
    for action, queue, state, count, since in found:
        labels = (cell, action, queue, state)
        lines += [(metrics.OPERATIONS, labels, count), (metrics.OLDEST, labels, _seconds(since, now))]
    return lines


def _services(cell: str, services: Iterable[Service]) -> Lines:
    now, lines = timezone.now(), Lines()
    for service in services:
        labels = (cell, service.binary, service.host)
        lines.append((metrics.SERVICE_STATE, (*labels, _state(service)), 1))
        if service.ended_at is not None:
            continue
        lines.append((metrics.HEARTBEAT_AGE, labels, max(0.0, service.silent_for.total_seconds())))
        lines.append((metrics.SERVICE_OPERATIONS, labels, service.in_progress))
        if service.draining_since is not None:
            over = service.drained_at or now
            lines.append((metrics.SERVICE_DRAIN_SECONDS, labels, _seconds(service.draining_since, over)))
    return lines


def _shutdowns(cell: str, timers: Iterable[tuple[str, int, datetime]]) -> Lines:
    now, lines = timezone.now(), Lines()
    for host, count, first in timers:
        labels = (cell, host)
        lines += [(metrics.GUESTS_SHUTTING_DOWN, labels, count), (metrics.GUEST_OVERDUE, labels, _seconds(first, now))]
    return lines


def _state(service: Service) -> str:
    if service.ended_at is not None:
        return "ended"
    return (service.drain_state or "up") if service.is_up else "down"


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


def _queues(hosts: set[str]) -> list[str]:
    queues = (dispatch.REQUESTS, dispatch.OPS)
    return [dispatch.CONDUCTOR_QUEUE, *(dispatch.host_queue(host, queue) for host in sorted(hosts) for queue in queues)]


def _depths(brokers_of: dict[str, tuple[str, list[str]]]) -> Lines:
    """The queue depths of all brokers in parallel, within CELL_TIMEOUT."""
    end, lines = time.monotonic() + settings.CELL_TIMEOUT, Lines()
    asked = {
        cell: broker_probes.ask(url, "depths", partial(_timed_depths, url, queues))
        for cell, (url, queues) in brokers_of.items() if url
    }  # fmt: skip
    for cell, future in asked.items():
        said = broker_probes.collect(future, end)
        lines.append((metrics.CELL_UP, (cell, "broker"), not isinstance(said, broker_probes.BrokerUnavailable)))
        if isinstance(said, broker_probes.BrokerUnavailable):
            logger.debug("metrics.broker_unavailable", cell=cell, reason=said.reason)
            continue
        seconds, depths = said
        lines.append((metrics.CELL_ANSWER_SECONDS, (cell, "broker"), seconds))
        lines += [(metrics.QUEUE_DEPTH, (cell, *_queue(queue)), depth) for queue, depth in depths.items()]
    return lines


def _timed_depths(url: str, queues: list[str]) -> tuple[float, dict[str, int]]:
    began = time.monotonic()
    depths = brokers.depths(url, queues)
    return time.monotonic() - began, depths


def _queue(queue: str) -> tuple[str, str]:
    """Queue kind and host from a queue's name."""
    kind, _, host = queue.partition(".")
    return {"compute": dispatch.REQUESTS, "compute-ops": dispatch.OPS}.get(kind, kind), host
