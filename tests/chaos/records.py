"""Everything that is on record after a story: servers, actions and steps of every cell, and what the drivers did."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deploy.local.state import CELLS
from tests.live.cloud import Cloud

QUARTER = 6 * 3600.0


@dataclass(slots=True)
class Server:
    """A server's row, living or deleted."""

    uuid: str
    name: str
    cell: str
    host: str
    vm_state: str
    task_state: str | None
    has_fault: bool
    deleted: bool


@dataclass(slots=True)
class Step:
    """One part of an action."""

    id: int
    action: int
    name: str
    host: str
    state: str
    attempts: int
    queued: float | None
    started: float | None
    finished: float | None
    details: str


@dataclass(slots=True)
class Action:
    """One thing asked of a server; `did` are the driver's effects it accounts for."""

    cell: str
    id: int
    server: str
    name: str
    key: str
    request_id: str
    started: float
    finished: float | None
    message: str | None
    outcome: str
    was: str | None = None  # the vm_state a server had before it was resized
    mark: str | None = None  # of its effect, where the driver keeps one
    steps: list[Step] = field(default_factory=list)
    did: list[Effect] = field(default_factory=list)


@dataclass(slots=True)
class Effect:
    """One change a driver made to a guest."""

    host: str
    cell: str
    at: float
    server: str
    verb: str
    mark: str


@dataclass
class Records:
    """All of it, read once."""

    servers: dict[str, list[Server]]
    actions: dict[str, list[Action]]
    effects: dict[str, list[Effect]]
    guests: dict[str, dict[str, int]]  # host -> guest -> power state
    waiting: set[str]  # build requests
    images: dict[str, list[str]]  # name -> states


def read(cloud: Cloud) -> Records:
    """Every book, as it is now."""
    servers: dict[str, list[Server]] = defaultdict(list)
    actions: dict[str, list[Action]] = defaultdict(list)
    for cell in ("cell0", *CELLS):
        for server in servers_of(cloud, cell):
            servers[server.uuid].append(server)
        for action in actions_of(cloud, cell):
            actions[action.server].append(action)
    effects: dict[str, list[Effect]] = defaultdict(list)
    guests = {}
    for host, cell in cloud.state.hosts.items():
        for effect in _effects(cloud, host, cell):
            effects[effect.server].append(effect)
        guests[host] = dict(of_host(cloud, host, "SELECT uuid, power FROM guests"))
    for done in effects.values():
        done.sort(key=lambda effect: effect.at)
    images: dict[str, list[str]] = defaultdict(list)
    for name, status in cloud.ask("global", "SELECT name, status FROM images_image WHERE status <> 'deleted'"):
        images[name].append(status)
    waiting = {uuid for (uuid,) in cloud.ask("global", "SELECT server_id FROM cells_buildrequest")}
    return Records(servers, actions, effects, guests, waiting, images)


def of_host(cloud: Cloud, host: str, question: str) -> list[tuple[Any, ...]]:
    """Rows of a fake host's own state."""
    file = cloud.state.path("hosts", host, "state", "guests.sqlite3")
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as connection:
        return connection.execute(question).fetchall()


def servers_of(cloud: Cloud, cell: str) -> list[Server]:
    columns = "uuid, display_name, host, vm_state, task_state, fault IS NOT NULL, deleted"
    return [
        Server(uuid, name, cell, host, vm, task, bool(fault), bool(deleted))
        for uuid, name, host, vm, task, fault, deleted in cloud.ask(cell, f"SELECT {columns} FROM compute_instance")
    ]


def actions_of(cloud: Cloud, cell: str) -> list[Action]:
    """Every action of a cell with its steps, oldest first."""
    columns = "id, server_id, action, key, request_id, started_at, finished_at, message, outcome"
    columns += ", params ->> 'was', params ->> 'mark'"
    found = {}
    for row in cloud.ask(cell, f"SELECT {columns} FROM compute_instanceaction ORDER BY started_at, id"):
        *which, started, finished, message, outcome, was, mark = row
        found[which[0]] = Action(cell, *which, _moment(started) or 0.0, _moment(finished), message, outcome, was, mark)
    columns = "id, action_id, name, host, state, attempts, queued_at, started_at, finished_at, details"
    for row in cloud.ask(cell, f"SELECT {columns} FROM compute_step ORDER BY id"):
        *plain, queued, started, finished, details = row
        step = Step(*plain, _moment(queued), _moment(started), _moment(finished), details)
        found[step.action].steps.append(step)
    return list(found.values())


def _effects(cloud: Cloud, host: str, cell: str) -> list[Effect]:
    rows = of_host(cloud, host, "SELECT at, uuid, verb, mark FROM effects ORDER BY id")
    return [Effect(host, cell, righted(at), uuid, verb, mark) for at, uuid, verb, mark in rows]


def righted(at: float) -> float:
    """When something was in the last three hours, by a clock that is right or whole quarters of a day wrong."""
    return at - round((at - time.time()) / QUARTER) * QUARTER


def _moment(value: Any) -> float | None:
    """Seconds since 1970. SQLite keeps text, in UTC."""
    if value is None:
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return righted((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
