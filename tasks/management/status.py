"""`host status` and `host list`: show the state, request nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db.models import Count
from rich.console import Group, RenderableType

from cells import brokers, scatter
from cells.models import Cell, HostMapping
from cloud.durations import format_duration
from cloud.terminal import Fields, Rows
from cloud.words import counted
from compute.models import Service, Step
from compute.models.host import COMPUTE, CONDUCTOR, SCHEDULER
from compute.operations import dispatch
from tasks.management.options import HostCommand
from tasks.management.outcome import DONE, SILENT, CommandRefused
from tasks.management.output import OPERATIONS, render_details
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, rounded, take_snapshots, to_json

COLUMNS = ("host", "cell", "state", "requested", "running", "heartbeat", "version", "reason")
QUEUES = {CONDUCTOR: [dispatch.CONDUCTOR_QUEUE], SCHEDULER: [dispatch.SCHEDULER_QUEUE]}


def show_status(command: HostCommand) -> int:
    """Print one page a host; return SILENT when one of them is not up, else DONE."""
    snapshots = take_snapshots(command.locate())
    depths = {one.name: _queue_depths(one.location) for one in snapshots}
    for number, one in enumerate(snapshots):
        command.output.print_page(Group(*([""] if number else []), *_render(one, depths[one.name])))
    if command.output.form != "table":
        command.output.print_json({"hosts": [to_json(one) | {"queues": depths[one.name]} for one in snapshots]})
    return DONE if all(one.state in ("up", "asked", "emptying", "draining", "drained") for one in snapshots) else SILENT


def list_hosts(command: HostCommand) -> int:
    """Print a page of the hosts of all cells, by name; name the cells that do not answer."""
    if settings.ROLE == "host":
        raise CommandRefused("A host has no list of hosts. Run this where the global database is.")
    marker, limit, output = command.marker, command.limit, command.output
    if marker and not command.everything and not HostMapping.objects.filter(host=marker).exists():
        raise CommandRefused(f"--marker: there is no host {marker}. Give the last host of the page before.")
    cells = list(Cell.objects.order_by("name"))
    gathered = scatter.gather(cells, lambda _: _read_services(command))
    found = [row for cell in cells for row in _rows_of_cell(cell, command, gathered.answers.get(cell.id))]
    found.sort(key=lambda row: (row["host"], row["binary"]))
    rows, more = found[:limit], found[limit - 1]["host"] if len(found) > limit else ""
    for cell in cells:
        if cell.id in gathered.down and not cell.is_cell0:
            command.errors.write(f"{cell.name} does not answer ({gathered.down[cell.id].reason}): its hosts are "
                                 "unknown.")  # fmt: skip
    if output.form == "json":
        output.print_json({"hosts": rows, "next_marker": more or None})
    for row in rows if output.form == "jsonl" else ():
        output.print_json(row)
    shown = [row | {"requested": row["wanted"], "heartbeat": _ago(row["heartbeat"], never=None)} for row in rows]
    output.print_page(Rows(COLUMNS, shown))
    if more and output.form == "table":
        command.errors.write(f"There are more: --marker {more}")
    return DONE


def _read_services(command: HostCommand) -> list[tuple[Service, int]]:
    """Return one more than fits, each with how many steps it runs. In the targeted cell: two queries."""
    services = Service.objects.all() if command.everything else Service.objects.computes()
    services = services.filter(host__gt=command.marker).order_by("host", "binary")
    found = list(services[: command.limit + 1])
    hosts = [one.host for one in found if one.binary == COMPUTE]
    steps = Step.objects.filter(state__in=(Step.State.RUNNING, Step.State.WAITING), host__in=hosts)
    counts = dict(steps.values_list("host").annotate(Count("pk")).order_by())
    return [(one, counts.get(one.host, 0) if one.binary == COMPUTE else one.in_progress) for one in found]


def _rows_of_cell(
    cell: Cell, command: HostCommand, services: list[tuple[Service, int]] | None
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the hosts with a service record, then those that are only mapped: all, when the cell is down."""
    for one, running in services or ():
        yield _row(ServiceSnapshot(ServiceLocation(one.host, one.binary, cell), one), running)
    recorded = {one.host for one, _ in services or () if one.binary == COMPUTE}
    mapped = HostMapping.objects.filter(cell=cell, host__gt=command.marker).order_by("host")
    down = "" if services is not None else "its cell does not answer"
    for host in mapped.values_list("host", flat=True)[: command.limit + 1]:
        if host not in recorded:
            yield _row(ServiceSnapshot(ServiceLocation(host, COMPUTE, cell), down=down), None)


def _row(one: ServiceSnapshot, running: int | None) -> dict[str, Any]:
    service = one.service
    return {
        "host": one.name, "binary": one.location.binary, "cell": one.location.cell.name, "state": one.state,
        "wanted": _requested_state(service) if service else None, "running": running,
        "heartbeat": rounded(one.beat_age), "version": service.version if service else None,
        "reason": (service.drain_reason or service.disabled_reason or None) if service else one.down or None,
    }  # fmt: skip


def _requested_state(service: Service) -> str:
    parts = (["disabled"] if service.disabled else []) + (["drained"] if service.drain_wanted else [])
    parts += ["emptied"] if service.drain_state == "emptying" else ["servers back"] if service.is_returning else []
    return ", ".join(parts) or "work"


def _render(one: ServiceSnapshot, depths: dict[str, int | None]) -> Iterator[RenderableType]:
    location, service = one.location, one.service
    process = "on another machine"
    if location.node is not None:
        process = f"{f'pid {location.pid}' if location.pid else 'does not run'}, log {location.node.log}"
    pairs = [("service", f"{location.binary} of {location.cell.name}"), ("process", process)]
    if one.down:
        pairs.append(("unknown", f"{location.cell.name} does not answer ({one.down})"))
    if service is not None:
        pairs += [("requested", _request(service)), ("state", _times(one, service)),
                  ("incarnation", f"{service.incarnation or '-'}, version {service.version}")]  # fmt: skip
    queues = (f"{name} {'?' if depth is None else depth}" for name, depth in depths.items())
    pairs.append(("messages", ", ".join(queues)))
    if service is not None and location.binary == COMPUTE:
        pairs.append(("waiting", f"{counted(one.waiting, 'request')} not begun"))
    if service is not None:
        pairs.append(("in progress", str(one.in_progress)))
    yield from (f"{one.name}: {one.state}", Fields(pairs, indent=2), *render_details([one], OPERATIONS[1:]))


def _request(service: Service) -> str:
    parts = [f"disabled ({service.disabled_reason or 'no reason given'})" if service.disabled else "enabled"]
    if service.forced_down:
        parts.append("forced down")
    if service.is_returning:
        parts.append(f"its servers back, {service.drain_moves} at a time")
    if service.drain_wanted or service.drain_state == "emptying":
        why = f": {service.drain_reason}" if service.drain_reason else ""
        until = f", until {service.drain_deadline:%F %T}" if service.drain_deadline else ""
        first = "" if service.drain_wanted else f"emptied, {counted(service.drain_moves, 'server')} at a time, then "
        end = " and ended" if service.drain_then_exit else ""
        parts.append(f"{first}drained{end} by {service.drain_by}{until}{why}")
    return ", ".join(parts)


def _times(one: ServiceSnapshot, service: Service) -> str:
    times = {"ended": service.ended_at, "takes no work since": service.draining_since, "drained": service.drained_at}
    parts = [f"{what} {_ago(one.age(since))}" for what, since in times.items() if since]
    return ", ".join([f"heartbeat {_ago(one.beat_age)}", *parts])


def _ago(seconds: float | None, never: str | None = "never") -> str | None:
    return never if seconds is None else f"{format_duration(seconds)} ago"


def _queue_depths(location: ServiceLocation) -> dict[str, int | None]:
    """Return the number of messages in its queues; None where the broker does not answer."""
    queues = (dispatch.REQUESTS, dispatch.OPS)
    names = QUEUES.get(location.binary) or [dispatch.host_queue(location.name, queue) for queue in queues]
    url = settings.BROKER_URL if location.binary == SCHEDULER else location.cell.broker_url
    try:
        return dict(brokers.depths(url, names)) if url else dict.fromkeys(names)
    except Exception:  # each kombu transport raises its own kinds; all mean: not reached
        return dict.fromkeys(names)
