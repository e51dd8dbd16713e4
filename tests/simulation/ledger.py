"""The books after a story: is everything ended, each guest where its record says, and is everything counted once?

Read with plain SQL, so that nobody in the story notices.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from compute.virt.base import PowerState
from tests.chaos.effects import POWER
from tests.simulation.client import Asked
from tests.simulation.cloud import Cloud, ask

OPEN = "('queued', 'running', 'waiting')"
NAMES = {
    "stop": "stopped", "start": "active", "pause": "paused", "unpause": "active", "suspend": "suspended",
    "resume": "active", "reboot": "active", "rescue": "rescued", "unrescue": "active", "rebuild": None,
    "resize": "resized", "migrate": "resized", "confirmResize": None, "revertResize": None, "shelve": "shelved",
    "unshelve": "active", "live-migration": None, "createImage": None, "delete": "deleted", "create": "active",
    "evacuate": None,
}  # fmt: skip
OFF = (PowerState.SHUTDOWN, PowerState.CRASHED)
SHELVED = ("shelved", "shelved_offloaded")
COLUMNS = ("uuid", "display_name", "host", "node", "vm_state", "task_state", "power_state", "deleted", "vcpus",
           "memory_mb", "disk_gb", "fault", "launched_at")  # fmt: skip


@dataclass(slots=True)
class Row:
    """A server's row."""

    uuid: str
    name: str
    host: str
    node: str
    vm_state: str
    task_state: str | None
    power_state: int
    deleted: bool
    vcpus: int
    memory_mb: int
    disk_gb: int
    fault: Any
    launched_at: Any
    cell: str = ""


def is_quiet(cloud: Cloud) -> bool:
    """Whether nothing is open any more, as far as rows say."""
    return not any(True for _ in _open(cloud))


def judge(cloud: Cloud, asked: list[Asked]) -> list[str]:
    """Everything that must not be."""
    books = Books(cloud)
    found = [*_open(cloud), *cloud.broken_rules]
    if cloud.is_restored:  # what happened after the backup is lost: docs/runbooks/cell-restored.md
        return found + _claims(books) + _quota(books)
    found += _requests(books, asked)
    for server_id in sorted(books.rows):
        found += _server(books, server_id)
    found += _guests(books) + _claims(books) + _quota(books) + _images(books) + _moves(books) + _effects(books)
    found += [line for server_id in sorted(books.rows) for line in _history(books, server_id)]
    return found


class Books:
    """What is on record, and what machines have."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.actions: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for name, uuid in settings.CELLS.items():
            alias = f"cell:{uuid}"
            for values in ask(alias, f"SELECT {', '.join(COLUMNS)} FROM compute_instance ORDER BY id"):
                row = Row(*values)
                row.cell = name
                self.rows[row.uuid].append(row)
            columns = ("id", "server_id", "action", "key", "request_id", "started_at", "finished_at", "message",
                       "outcome", "params")  # fmt: skip
            for values in ask(alias, f"SELECT {', '.join(columns)} FROM compute_instanceaction ORDER BY id"):
                action = dict(zip(columns, values, strict=True)) | {"cell": name}
                action["params"] = json.loads(action["params"])
                self.actions[action["server_id"]].append(action)
        self.powers = {name: machine.powers() for name, machine in cloud.machines.items()}
        self.living = {uuid: row for uuid, rows in self.rows.items() for row in rows if not row.deleted}


def _open(cloud: Cloud) -> list[str]:
    found = []
    for name, uuid in settings.CELLS.items():
        alias = f"cell:{uuid}"
        for step, host, server, state, details, attempts in ask(
            alias, f"SELECT name, host, server_id, state, details, attempts FROM compute_step WHERE state IN {OPEN}"
        ):
            where = host or "a conductor"
            found.append(f"stuck: step {step} of {server[:8]} on {where} is {state}, try {attempts}: {details}")
        for action, server in ask(
            alias, "SELECT action, server_id FROM compute_instanceaction WHERE finished_at IS NULL"
        ):
            found.append(f"stuck: action {action} of {server[:8]} has not ended")
        for server, vm, task in ask(
            alias, "SELECT uuid, vm_state, task_state FROM compute_instance WHERE deleted = 0 AND"
            " (task_state IS NOT NULL OR vm_state = 'building')"
        ):  # fmt: skip
            found.append(f"stuck: {server[:8]} is {vm}/{task}")
        for (host,) in ask(alias, "SELECT host FROM compute_hostneed"):
            found.append(f"stuck: an action in {name} still needs {host}")
    found += [
        f"stuck: a build request of {one[:8]}" for (one,) in ask("default", "SELECT server_id FROM cells_buildrequest")
    ]
    found += [
        f"stuck: a late delete of {one[:8]}" for (one,) in ask("default", "SELECT server_id FROM cells_latedelete")
    ]
    return found


def _requests(books: Books, asked: list[Asked]) -> list[str]:
    by_request = Counter(
        (action["request_id"], action["action"])
        for actions in books.actions.values()
        for action in actions
        if action["key"]
    )
    known = {request for request, _ in by_request}
    found = [
        f"double: {name} ({request[-6:]}) is recorded {n} times" for (request, name), n in by_request.items() if n > 1
    ]
    for one in asked:
        if one.verb in ("drain", "undrain", "abort", "force down", "up again"):
            continue
        here = one.request_id in known
        if one.accepted is False and here and one.verb != "delete":
            found.append(f"double: {one.verb} of {one.server_id[:8]} was refused ({one.status}), and is recorded")
        if not one.accepted or here:
            continue
        rows = books.rows.get(one.server_id, [])
        gone = all(row.deleted for row in rows)
        was_deleted = any(other.verb == "delete" and other.server_id == one.server_id for other in asked)
        if one.verb == "delete" and (gone or any(done["key"] == "Delete" for done in books.actions[one.server_id])):
            continue  # of a server that was being placed: it is recorded under the scheduler's own request
        if one.verb == "create" and was_deleted and not rows:
            continue
        found.append(
            f"lost: {one.verb} of {one.server_id[:8]} was accepted ({one.request_id[-6:]}), and is not recorded"
        )
    return found


def _server(books: Books, server_id: str) -> list[str]:
    rows = [row for row in books.rows[server_id] if not row.deleted]
    if len(books.rows[server_id]) > 1:
        return [f"double: {server_id[:8]} has {len(books.rows[server_id])} rows"]
    on = {host: powers[server_id] for host, powers in books.powers.items() if server_id in powers}
    if len(on) > 1:
        return [f"double: {server_id[:8]} has guests on {', '.join(on)}"]
    found = []
    for row in rows:
        if row.task_state or row.vm_state == "building":
            continue  # said by _open
        if row.vm_state == "error":
            if row.fault in (None, "null"):
                found.append(f"lost: {server_id[:8]} is in ERROR, and nothing says why")
            if on and row.host not in on:
                found.append(f"lost: {server_id[:8]} is in ERROR on {row.host}, its guest is on {', '.join(on)}")
            continue
        power = on.get(row.host)
        words = f"{server_id[:8]} is {row.vm_state} on {row.host} on record; guests: {_shown(on)}"
        wanted = _powers_of(books, row)
        if power not in wanted:
            found.append(f"lost: {words}")
        elif power is not None and row.power_state != int(power):
            found.append(f"lost: {words}, power state on record {PowerState(row.power_state).name}")
    return found


def _shown(on: dict[str, PowerState]) -> str:
    return ", ".join(f"{power.name} on {host}" for host, power in on.items()) or "none"


def _powers_of(books: Books, row: Row) -> tuple[PowerState | None, ...]:
    if row.vm_state == "resized" or (row.vm_state == "rescued" and {"power", "silence"} & books.cloud.harm):
        return (PowerState.RUNNING, *OFF)  # as it was before; or it went off, which is on record as its power state
    if row.vm_state == "stopped":
        return OFF
    return (POWER[row.vm_state],)


def _guests(books: Books) -> list[str]:
    return [
        f"leaked: a guest of {uuid[:8]} on {host}, and no such server lives"
        for host, powers in books.powers.items() for uuid in powers if uuid not in books.living
    ]  # fmt: skip


def _claims(books: Books) -> list[str]:
    found = []
    for name, uuid in settings.CELLS.items():
        alias = f"cell:{uuid}"
        held: dict[str, list[str]] = defaultdict(list)
        sizes = {}
        for server, node, *size in ask(
            alias, "SELECT a.server_id, n.hypervisor_hostname, a.vcpus, a.memory_mb, a.disk_gb"
            " FROM compute_allocation a JOIN compute_computenode n ON n.id = a.node_id"
        ):  # fmt: skip
            held[server].append(node)
            sizes[server, node] = size
        for server, nodes in held.items():
            row = books.living.get(server)
            if row is None or row.cell != name:
                found.append(f"leaked: {server[:8]} does not live in {name}, and has room on {', '.join(nodes)}")
            elif len(nodes) > 1 and row.vm_state not in ("resized", "error"):
                found.append(f"leaked: {server[:8]} is {row.vm_state}, and has room on {', '.join(nodes)}")
        for server, row in books.living.items():
            if row.cell != name or row.vm_state in ("error", "building", "shelved_offloaded") or row.task_state:
                continue
            if row.node not in held.get(server, []):
                found.append(f"lost: {server[:8]} is {row.vm_state} on {row.node}, and has no room there")
            elif sizes[server, row.node] != [row.vcpus, row.memory_mb, row.disk_gb]:
                found.append(f"leaked: {server[:8]} has {sizes[server, row.node]} of {row.node}, and is "
                             f"{[row.vcpus, row.memory_mb, row.disk_gb]}")  # fmt: skip
        for node, *numbers in ask(
            alias, "SELECT n.hypervisor_hostname, n.vcpus_used, n.memory_mb_used, n.disk_gb_used,"
            " coalesce(sum(a.vcpus), 0), coalesce(sum(a.memory_mb), 0), coalesce(sum(a.disk_gb), 0)"
            " FROM compute_computenode n LEFT JOIN compute_allocation a ON a.node_id = n.id GROUP BY n.id"
        ):  # fmt: skip
            if numbers[:3] != numbers[3:]:
                found.append(f"leaked: {node} says {numbers[:3]} are used, and {numbers[3:]} are claimed")
    return found


def _quota(books: Books) -> list[str]:
    found = []
    mapped = {server: (cell, bool(gone)) for server, cell, gone in
              ask("default", "SELECT server_id, cell_id, queued_for_delete FROM cells_instancemapping")}  # fmt: skip
    specs = {server: [vcpus, memory] for server, vcpus, memory in
             ask("default", "SELECT server_id, vcpus, memory_mb FROM cells_requestspec")}  # fmt: skip
    cells = {uuid: name for name, uuid in settings.CELLS.items()}
    for server, (cell, gone) in mapped.items():
        row = books.living.get(server)
        if not gone and row is None:
            found.append(f"leaked: the quota counts {server[:8]}, which does not live")
        if not gone and server not in specs:
            found.append(f"lost: {server[:8]} has no request spec")
        if row is not None and cells.get(cell) != row.cell:
            found.append(f"lost: {server[:8]} is in {row.cell}, and mapped to {cells.get(cell)}")
    for server, row in books.living.items():
        if server not in mapped:
            found.append(f"lost: {server[:8]} has no mapping")
        elif mapped[server][1]:
            found.append(f"leaked: {server[:8]} lives ({row.vm_state}), and the quota does not count it")
        spec, size = specs.get(server, [0, 0]), [row.vcpus, row.memory_mb]
        if row.vm_state == "resized" and all(a >= b for a, b in zip(spec, size, strict=True)):
            continue
        if spec != size:
            found.append(f"leaked: the quota counts {spec} for {server[:8]}, which has {size} ({row.vm_state})")
    return found


def _images(books: Books) -> list[str]:
    done = {action["params"].get("image_id"): action for actions in books.actions.values() for action in actions
            if action["action"] == "createImage"}  # fmt: skip
    shelved = {f"{row.name}-shelved" for row in books.living.values() if row.vm_state in SHELVED}
    found = []
    there = {}
    for image, name, status in ask("default", "SELECT id, name, status FROM images_image WHERE status <> 'deleted'"):
        there[str(image).replace("-", "")] = status
        if name.startswith("image-"):
            action = next(
                (one for key, one in done.items() if str(key).replace("-", "") == str(image).replace("-", "")), None
            )
            if action is None:
                found.append(f"leaked: {name} is {status}, and no snapshot is recorded")
            elif status != "active" and action["finished_at"]:
                found.append(f"leaked: {name} is {status}, and its snapshot ended: {action['outcome']}")
            elif action["message"] and status == "active" and "preempted" not in action["outcome"]:
                found.append(f"leaked: {name} is {status}, and its snapshot failed: {action['outcome']}")
        elif name.endswith("-shelved") and name not in shelved:
            found.append(f"leaked: {name} is {status}, and no such server is shelved")
    for key, action in done.items():
        if action["finished_at"] and not action["message"] and there.get(str(key).replace("-", "")) != "active":
            found.append(f"lost: a snapshot of {action['server_id'][:8]} is done, and its image is not there")
    return found


def _moves(books: Books) -> list[str]:
    found = []
    for name, machine in books.cloud.machines.items():
        for uuid in sorted(machine.kept()):
            row = books.living.get(uuid)
            if row is None or row.vm_state not in ("resized", "error") or row.host == name:
                found.append(f"leaked: {name} keeps what it handed over of {uuid[:8]}")
        for parcel in sorted(machine.inbox.glob("*")):
            row = books.living.get(parcel.stem)
            if row is not None and (row.vm_state, row.host) == ("error", name):
                continue  # it arrived, and could not be taken in: its fault says so
            found.append(f"leaked: {parcel.stem[:8]} came to {name}, and is not taken in")
    return found


def _effects(books: Books) -> list[str]:
    found = []
    for name, machine in books.cloud.machines.items():
        marks: Counter[tuple[str, str]] = Counter()
        for effect in machine.state.effects():
            if effect.effect == "rebooted" and effect.mark:
                marks[effect.uuid, effect.mark] += 1
        for (uuid, mark), times in marks.items():
            if times > 1 + machine.power_losses:
                found.append(f"double: {uuid[:8]} was rebooted {times} times for step {mark} on {name}")
    return found


def _history(books: Books, server_id: str) -> list[str]:
    """What ended last is how the server is."""
    row = books.living.get(server_id)
    ended = sorted((one for one in books.actions[server_id] if one["finished_at"]), key=lambda one: one["finished_at"])
    if row is None or row.vm_state == "error" or row.task_state or not ended or "clock" in books.cloud.harm:
        return []
    deleted = [one for one in ended if one["key"] == "Delete" and not one["message"]]
    if deleted:
        return [f"lost: {server_id[:8]} was deleted, and lives ({row.vm_state})"]
    for one in reversed(ended):
        wanted = NAMES.get(one["action"])
        if one["message"] or wanted is None:
            if one["message"] or one["action"] in ("confirmResize", "revertResize", "evacuate", "rebuild"):
                return []  # as it was before, which others tell
            continue
        fits = SHELVED if wanted == "shelved" else (wanted,)
        if row.vm_state not in fits:
            return [f"lost: the last thing done to {server_id[:8]} was {one['action']}, and it is {row.vm_state}"]
        return []
    return []
