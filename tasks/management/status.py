"""`host status` and `host list`: show the state, request nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import OutputWrapper
from django.db.models import Count

from cells import brokers, scatter
from cells.management.tables import inner_table, table_lines, width_of
from cells.models import Cell, HostMapping
from cloud.words import counted
from compute.models import Service, Step
from compute.models.host import COMPUTE, CONDUCTOR, SCHEDULER
from compute.operations import dispatch
from tasks.management import guest_table, migration_table
from tasks.management import snapshot as looking
from tasks.management.options import CommandRefused, HostCommand
from tasks.management.output import OPERATIONS, operations_shown, span
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot, look
from tasks.management.wait import DONE, SILENT

COLUMNS = ("host", "cell", "state", "wanted", "running", "heartbeat", "version", "reason")
TAKES = {CONDUCTOR: [dispatch.CONDUCTOR_QUEUE], SCHEDULER: [dispatch.SCHEDULER_QUEUE]}


def status(asked: HostCommand, form: str, global_broker: str) -> int:
    """Print one page a host; return SILENT when one of them is not up, else DONE."""
    looks = look(asked.places())
    depths = {one.place.name: _depths(one.place, global_broker) for one in looks}
    out = asked.screen.out
    if form == "table":
        out.write("\n\n".join("\n".join(_page(one, depths[one.place.name], width_of(out))) for one in looks))
    else:
        found = [looking.facts(one) | {"queues": depths[one.place.name]} for one in looks]
        out.write(json.dumps({"hosts": found}, indent=2 if form == "json" else None, default=str))
    return DONE if all(one.state in ("up", "asked", "emptying", "draining", "drained") for one in looks) else SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPage:
    """Which part of the list to print."""

    limit: int
    marker: str
    everything: bool  # conductors and schedulers too


def listing(out: OutputWrapper, err: OutputWrapper, form: str, page: StatusPage) -> int:
    """Print a page of the hosts of all cells, by name; name the cells that do not answer."""
    if page.marker and not HostMapping.objects.filter(host=page.marker).exists() and not page.everything:
        raise CommandRefused(f"--marker: there is no host {page.marker}. It is the last host of the page before.")
    cells = list(Cell.objects.order_by("name"))
    gathered = scatter.gather(cells, lambda _: _services(page))
    rows: list[dict[str, Any]] = []
    for cell in cells:
        rows += _of_cell(cell, page, gathered.answers.get(cell.id))
    rows.sort(key=lambda row: (row["host"], row["binary"]))
    for cell in cells:
        if cell.id in gathered.down and not cell.is_cell0:
            err.write(f"{cell.name} does not answer ({gathered.down[cell.id].reason}): its hosts are unknown.")
    more = rows[page.limit - 1]["host"] if len(rows) > page.limit else ""
    _print(out, form, rows[: page.limit], more)
    if more and form == "table":
        err.write(f"There are more: --marker {more}")
    return DONE


def _print(out: OutputWrapper, form: str, rows: Sequence[dict[str, Any]], more: str) -> None:
    if form == "jsonl":
        for row in rows:
            out.write(json.dumps(row, default=str))
    elif form == "json":
        out.write(json.dumps({"hosts": rows, "next_marker": more or None}, indent=2, default=str))
    else:
        shown = [row | {"heartbeat": row["heartbeat"] and _ago(row["heartbeat"])} for row in rows]
        out.write("\n".join(table_lines(COLUMNS, shown, width_of(out))))


def _services(page: StatusPage) -> list[tuple[Service, int]]:
    """Return one more than fits, each with how many steps it runs. In the targeted cell: two queries."""
    services = Service.objects.filter(host__gt=page.marker).order_by("host", "binary")
    if not page.everything:
        services = services.filter(binary=COMPUTE)
    found = list(services[: page.limit + 1])
    at_it = Step.objects.filter(state__in=(Step.State.RUNNING, Step.State.WAITING))
    steps = at_it.filter(host__in=[row.host for row in found if row.binary == COMPUTE])
    counts = dict(steps.values_list("host").annotate(Count("pk")).order_by())
    return [(row, counts.get(row.host, 0) if row.binary == COMPUTE else row.in_progress) for row in found]


def _of_cell(cell: Cell, page: StatusPage, services: list[tuple[Service, int]] | None) -> list[dict[str, Any]]:
    """Return the hosts with a service record, then those that are only mapped: all, when the cell is down."""
    rows = [
        _row(ServiceSnapshot(ServiceLocation(one.host, one.binary, cell), one), count) for one, count in services or ()
    ]
    seen = {row["host"] for row in rows if row["binary"] == COMPUTE}
    mapped = HostMapping.objects.filter(cell=cell, host__gt=page.marker).order_by("host")
    down = "" if services is not None else "its cell does not answer"
    for host in mapped.values_list("host", flat=True)[: page.limit + 1]:
        if host not in seen:
            rows.append(_row(ServiceSnapshot(ServiceLocation(host, COMPUTE, cell), down=down), None))
    return rows


def _row(one: ServiceSnapshot, running: int | None) -> dict[str, Any]:
    service = one.service
    return {
        "host": one.place.name, "binary": one.place.binary, "cell": one.place.cell.name, "state": one.state,
        "wanted": _wanted(service), "running": running, "heartbeat": looking.rounded(one.beat_age),
        "version": service.version if service else None,
        "reason": (service.drain_reason or service.disabled_reason or None) if service else one.down or None,
    }  # fmt: skip


def _wanted(service: Service | None) -> str | None:
    if service is None:
        return None
    words = (["disabled"] if service.disabled else []) + (["drained"] if service.drain_wanted else [])
    words += ["emptied"] if service.drain_state == "emptying" else ["servers back"] if service.is_returning else []
    return ", ".join(words) or "work"


def _page(one: ServiceSnapshot, depths: dict[str, int | None], width: int | None) -> list[str]:
    place, service = one.place, one.service
    pid = place.pid
    lines = [
        f"{place.name}: {one.state}",
        f"  is           {place.binary} of {place.cell.name}",
        f"  process      {_process(place, pid)}",
    ]
    if one.down:
        lines.append(f"  unknown      {place.cell.name} does not answer ({one.down})")
    if service is not None:
        lines += [
            f"  wanted       {_drain_request(service)}",
            f"  seen         {_seen(one, service)}",
            f"  life         {service.incarnation or '-'}, version {service.version}",
        ]
    queues = ", ".join(f"{name} {'?' if depth is None else depth}" for name, depth in depths.items())
    lines.append(f"  messages     {queues}")
    if service is not None:
        if place.binary == COMPUTE:
            lines.append(f"  waiting      {counted(one.waiting, 'request')} nobody has begun")
        lines.append(f"  in progress  {looking.in_progress(one)}")
        rows = migration_table.operations([one])
        if rows:
            lines += inner_table(OPERATIONS[1:], operations_shown(rows), width, by=4)
        lines += migration_table.page(one, width) + guest_table.page(one, width)
    return lines


def _process(place: ServiceLocation, pid: int | None) -> str:
    if place.node is None:
        return "on another machine"
    return f"pid {pid}, log {place.node.log}" if pid else f"does not run, log {place.node.log}"


def _drain_request(service: Service) -> str:
    words = [f"disabled ({service.disabled_reason or 'no reason given'})" if service.disabled else "enabled"]
    if service.forced_down:
        words.append("forced down")
    if service.is_returning:
        words.append(f"its servers back, {service.drain_moves} at a time")
    if service.drain_wanted or service.drain_state == "emptying":
        why = f": {service.drain_reason}" if service.drain_reason else ""
        until = f", until {service.drain_deadline:%F %T}" if service.drain_deadline else ""
        first = "" if service.drain_wanted else f"emptied, {counted(service.drain_moves, 'server')} at a time, then "
        end = " and ended" if service.drain_then_exit else ""
        words.append(f"{first}drained{end} by {service.drain_by}{until}{why}")
    return ", ".join(words)


def _seen(one: ServiceSnapshot, service: Service) -> str:
    words = [f"heartbeat {_ago(one.beat_age)}"]
    if service.ended_at:
        words.append(f"ended {_ago((one.at - service.ended_at).total_seconds())}")
    if service.draining_since:
        words.append(f"takes no work since {_ago((one.at - service.draining_since).total_seconds())}")
    if service.drained_at:
        words.append(f"drained {_ago((one.at - service.drained_at).total_seconds())}")
    return ", ".join(words)


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{span(max(0.0, seconds))} ago"


def _depths(place: ServiceLocation, global_broker: str) -> dict[str, int | None]:
    """Return the number of messages in its queues; None where the broker does not answer."""
    queues = (dispatch.REQUESTS, dispatch.OPS)
    names = TAKES.get(place.binary) or [dispatch.host_queue(place.name, queue) for queue in queues]
    url = global_broker if place.binary == SCHEDULER else place.cell.broker_url
    try:
        return dict(brokers.depths(url, names)) if url else dict.fromkeys(names)
    except Exception:  # each kombu transport raises its own kinds; all mean: not reached
        return dict.fromkeys(names)
