"""`status`: every process, cell, queue, host and guest of the cloud on one page."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from cloud.durations import format_duration
from deploy.local import api, cells, hosts, redis, workers
from deploy.local.manage_commands import manage
from deploy.local.output import Failed
from deploy.local.processes import Daemon
from deploy.local.state import StackState


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One row of the process table."""

    name: str
    pid: int | None
    seconds: float = 0.0
    megabytes: float = 0.0


def status(state: StackState) -> int:
    """Print the page. Return 1 when a process or a cell's database is down."""
    if not state.exists:
        print(f"there is no cloud in {state.directory}: make up")
        return 1
    rows = processes(state)
    _print_processes(rows)
    _print_guests(state)
    down = [row.name for row in rows if row.pid is None]
    away: list[cells.Cell] = []
    try:
        away = _print_cells(state)
        down += [f"{row['host']} (no heartbeat)" for row in _print_services(state) if row["state"] != "up"]
        _print_queues(state)
    except Failed as failed:
        failed.show()
        return 1
    print()
    if down:
        print(f"down: {', '.join(down)}; `make up` starts them")
    for cell in away:
        print(f"{cell.sentence}. {cells.ADVICE}")
    if not down and not away:
        print(f"all up; API at {state.api_url}")
    return 1 if down or away else 0


def processes(state: StackState) -> list[StatusRow]:
    """Return a row for every process the cloud should have."""
    daemons: list[Daemon] = [redis.daemon(state, domain) for domain in state.redis_domains]
    daemons += [api.daemon(state), *(workers.daemon(state, node) for node in workers.nodes(state))]
    rows = [_row(daemon.name, daemon.pid()) for daemon in daemons]
    return rows + [_row(f"libvirtd-{host.name}", host.pid()) for host in hosts.libvirt_hosts(state)]


def _row(name: str, pid: int | None) -> StatusRow:
    """Read age and memory, with that of the children: the API's workers are children. A process that ends is down."""
    if pid is not None:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            resident = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
            return StatusRow(name, pid, time.time() - process.create_time(), resident / 2**20)
    return StatusRow(name, None)


def _print_processes(rows: list[StatusRow]) -> None:
    print(f"{'PROCESS':<18} {'PID':>8}  {'STATE':<5} {'SINCE':>12} {'MEMORY':>9}")
    for row in rows:
        if row.pid is None:
            print(f"{row.name:<18} {'-':>8}  {'DOWN':<5}")
        else:
            print(f"{row.name:<18} {row.pid:>8}  {'up':<5} {format_duration(row.seconds):>12} {row.megabytes:>6.0f} MB")


def _print_guests(state: StackState) -> None:
    print(f"\n{'HYPERVISOR':<18} GUESTS")
    if state.choices.driver == "fake":
        print(f"{', '.join(state.hosts):<18} simulated by the fake driver: openstack server list")
    for host in hosts.libvirt_hosts(state):
        names = hosts.guests(host)
        print(f"{host.name:<18} {len(host.qemu_pids())}  {' '.join(names)}")


def _print_cells(state: StackState) -> list[cells.Cell]:
    """Print the cells and return those whose database does not answer."""
    print(f"\n{'CELL':<10} DATABASE ANSWERS IN")
    found = cells.cells(state)
    for cell in found:
        print(f"{cell.name:<10} {cell.database}")
    return [cell for cell in found if cell.trouble]


def _print_services(state: StackState) -> list[dict[str, Any]]:
    print(f"\n{'SERVICE':<22} {'HOST':<18} {'CELL':<8} {'STATE':<6} HEARTBEAT")
    services = workers.services(state)
    for row in services:
        beat = "never" if row["age"] is None else f"{row['age']:.0f} s ago"
        print(f"{row['binary']:<22} {row['host']:<18} {row['cell']:<8} {row['state']:<6} {beat}")
    return services


def _print_queues(state: StackState) -> None:
    print(f"\n{'CELL':<10} {'QUEUE':<34} WAITING")
    depths = json.loads(manage(state, "queue_depths", "--json"))
    for cell, queues in depths.items():
        for queue, depth in queues.items():
            print(f"{cell:<10} {queue:<34} {'?' if depth is None else depth}")
