"""Was every accepted operation done exactly once, or did it fail with words? And is nothing stuck or leaked?

lost     accepted, and neither done nor failed with words; or the record is not what the hypervisor says
double   an effect nobody asked for, or once too often; a refusal that was carried out; a server in two cells
stuck    something is still open, busy or waiting
leaked   a guest, claim, image or unit of quota that belongs to no server
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

from deploy.local.state import CELLS
from tests.chaos.effects import BUILT, DOES, EFFECT_ELSEWHERE, MAY, NOTHING_TO_DO, POWER
from tests.chaos.records import Action, Effect, Records, Server, of_host
from tests.chaos.story import Asked
from tests.live.cloud import Cloud

KINDS = ("lost", "double", "stuck", "leaked")
SHELVED = {"shelved", "shelved_offloaded"}
COMES_AND_GOES = {"spawned", BUILT, "migrated out", "migrated in", "taken back", "destroyed"}
WAITS = {"resized", "error"}  # of one in ERROR a delete takes it
SLACK = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    kind: str
    server: str
    words: str


def judge(records: Records, asked: list[Asked], prefix: str) -> list[Finding]:
    """Of all servers of a story."""
    ours = {uuid for uuid, rows in records.servers.items() if rows[0].name.startswith(f"{prefix}-")}
    ours |= {one.server_id for one in asked if one.server_id}
    findings = answers(records, asked) + recorded_twice(records) + _copies(records, asked)
    for uuid in sorted(ours):
        findings += _account(records.actions.get(uuid, []), records.effects.get(uuid, []))
        findings += chain.from_iterable(_action(action, records) for action in records.actions.get(uuid, []))
        findings += of_server(uuid, records)
    findings += [
        Finding("leaked", "", f"image {name} is {', '.join(states)}")
        for name, states in records.images.items()
        if name.startswith(f"{prefix}-image") and states != ["active"]
    ]
    return findings + _shelf(records, prefix)


def _shelf(records: Records, prefix: str) -> list[Finding]:
    """A shelved server has its image, and no other has one there."""
    shelved = {f"{row.name}-shelved" for row in _living(records) if row.vm_state in SHELVED}
    there = {name for name, states in records.images.items() if states == ["active"]}
    ours = {name for name in records.images if name.startswith(f"{prefix}-") and name.endswith("-shelved")}
    found = [Finding("leaked", "", f"image {name} of no shelved server") for name in sorted(ours - shelved)]
    mine = {name for name in shelved if name.startswith(f"{prefix}-")}
    return found + [Finding("lost", "", f"image {name} of a shelved server") for name in sorted(mine - there)]


def leaks(cloud: Cloud, records: Records) -> list[Finding]:
    """Claims, sums and quota of the whole cloud."""
    living = {row.uuid for rows in records.servers.values() for row in rows if not row.deleted}
    # one in ERROR may have nothing left of it
    hold = {uuid for guests in records.guests.values() for uuid in guests} & living
    found = []
    held = {uuid for cell in CELLS for (uuid,) in cloud.ask(cell, "SELECT server_id FROM compute_allocation")}
    found += [Finding("leaked", uuid, "a claim of no living server") for uuid in held - living]
    found += [Finding("leaked", uuid, "on a host without a claim") for uuid in hold - held]
    for host, guests in records.guests.items():
        orphans = set(guests) - living
        found += [Finding("leaked", uuid, f"a guest on {host} without a living server") for uuid in orphans]
    for cell in CELLS:
        found += [Finding("leaked", "", words) for words in sums(cloud, cell)]
        found += _claimed_twice(cloud, cell, records)
        for action, host in cloud.ask(cell, "SELECT action_id, host FROM compute_hostneed"):
            found.append(Finding("leaked", "", f"action {action} of {cell} still needs {host}"))
    found += _kept(cloud, records) + _counted_wrongly(cloud)
    mappings = "SELECT server_id FROM cells_instancemapping WHERE queued_for_delete IS NOT TRUE"
    charged = {uuid for (uuid,) in cloud.ask("global", mappings)}
    found += [Finding("leaked", uuid, "the quota counts it, and it does not live") for uuid in charged - living]
    found += [Finding("leaked", uuid, "it lives, and the quota does not count it") for uuid in living - charged]
    return found


def _claimed_twice(cloud: Cloud, cell: str, records: Records) -> list[Finding]:
    """Only a server that waits for its user's word has room on two hosts."""
    twice = "SELECT server_id FROM compute_allocation GROUP BY server_id HAVING count(*) > 1"
    resized = {row.uuid for row in _living(records) if row.vm_state in WAITS}
    return [Finding("leaked", uuid, "room on two hosts") for (uuid,) in cloud.ask(cell, twice) if uuid not in resized]


def _kept(cloud: Cloud, records: Records) -> list[Finding]:
    """What a host keeps of servers that left it, and what came and was not taken in."""
    waiting = {row.uuid: row.host for row in _living(records) if row.vm_state in WAITS}
    found = []
    for host in cloud.state.hosts:
        for (uuid,) in of_host(cloud, host, "SELECT uuid FROM departed"):
            if waiting.get(uuid, host) == host:
                found.append(Finding("leaked", uuid, f"{host} keeps what it handed over"))
        for parcel in cloud.state.path("hosts", host, "state", "guests.arriving").glob("*"):
            found.append(Finding("leaked", parcel.stem, f"it came to {host}, and nobody took it in"))
    return found


def _counted_wrongly(cloud: Cloud) -> list[Finding]:
    """The quota counts a server as large as it is; one that waits for its user's word, as the larger of two sizes."""
    sizes = "SELECT server_id, vcpus, memory_mb FROM cells_requestspec"
    counted = {uuid: size for uuid, *size in cloud.ask("global", sizes)}
    living = "SELECT uuid, vm_state, vcpus, memory_mb FROM compute_instance WHERE NOT deleted"
    found = []
    for cell in CELLS:
        for uuid, vm_state, *size in cloud.ask(cell, living):
            spec = counted.get(uuid, [0, 0])
            if vm_state == "resized" and all(much >= real for much, real in zip(spec, size, strict=True)):
                continue
            if spec != size:
                found.append(Finding("leaked", uuid, f"the quota counts {spec} vCPUs and MiB, it has {size}"))
    return found


def _living(records: Records) -> list[Server]:
    return [row for rows in records.servers.values() for row in rows if not row.deleted]


def deaths_ordered(cloud: Cloud, verb: str) -> int:
    """How often workers were killed to order in the middle of a verb."""
    question = f"SELECT coalesce(sum(count), 0) FROM failures WHERE verb = '{verb}.die'"
    return sum(of_host(cloud, host, question)[0][0] for host in cloud.state.hosts)


def answers(records: Records, asked: list[Asked]) -> list[Finding]:
    """What the API said, and what became of it."""
    journaled = {action.request_id: action for actions in records.actions.values() for action in actions}
    deleted = {one.server_id for one in asked if one.verb == "delete" and one.accepted is not False}
    found = []
    for one in asked:
        where = journaled.get(one.request_id)
        if one.accepted is False and where is not None:
            found.append(Finding("double", one.server_id, f"{one.verb} was refused ({one.status}), and is recorded"))
        if not one.accepted or where is not None:
            continue
        rows = records.servers.get(one.server_id, [])
        gone = all(row.deleted for row in rows)
        if one.verb == "delete":
            fine = gone and one.server_id not in records.waiting
        elif one.verb == "boot":
            fine = bool(rows) or one.server_id in records.waiting or one.server_id in deleted
        else:
            fine = False
        if not fine:
            words = f"{one.verb} was accepted ({one.request_id}), and is not recorded"
            found.append(Finding("lost", one.server_id, words))
    return found


def recorded_twice(records: Records) -> list[Finding]:
    times = Counter(
        (action.server, action.name, action.request_id)
        for action in chain.from_iterable(records.actions.values())
        if action.key
    )
    return [
        Finding("double", server, f"{name} ({request_id}) is recorded {count} times")
        for (server, name, request_id), count in times.items()
        if count > 1
    ]


def _copies(records: Records, asked: list[Asked]) -> list[Finding]:
    """The effect of createImage is its image; reading the disk once more is none."""
    done = {
        action.request_id
        for action in chain.from_iterable(records.actions.values())
        if action.name == "createImage" and action.finished and action.message is None
    }
    return [
        Finding("lost", one.server_id, f"createImage ({one.request_id}) is done, and its image is {states or 'gone'}")
        for one in asked
        if one.request_id in done and (states := records.images.get(one.name, [])) != ["active"]
    ]


def _account(actions: list[Action], effects: list[Effect]) -> list[Finding]:
    """Give every effect to the action that asked for it; what is left over, nobody asked for."""
    found = []
    for action in actions:
        action.did.clear()
    for effect in effects:
        asked = [action for action in actions if action.key and _covers(action, effect)]
        # one that was at it there; the first that has done nothing yet; the one that must, before those that may
        asked.sort(
            key=lambda action: (not _at_it(action, effect), bool(_main(action)), effect.verb not in DOES[action.name])
        )
        owner = asked[0] if asked else None
        if owner is None:
            found.append(Finding("double", effect.server, f"{effect.verb} on {effect.host}, which nobody asked for"))
        else:
            owner.did.append(effect)
    return found


def _covers(action: Action, effect: Effect) -> bool:
    kinds = DOES.get(action.name, set()) | MAY.get(action.name, set())
    if effect.verb not in kinds:
        return False
    if effect.verb == "rebooted":  # it says itself which action asked for it; of an older version, which step
        return action.cell == effect.cell and effect.mark in {action.mark, *(str(step.id) for step in action.steps)}
    end = (action.finished or effect.at) + SLACK
    return action.started - SLACK <= effect.at <= end


def _at_it(action: Action, effect: Effect) -> bool:
    """Whether a step of it may have run there then."""
    steps = [step for step in action.steps if step.host == effect.host and step.attempts]
    return any((step.queued or 0.0) - SLACK <= effect.at <= (step.finished or effect.at) + SLACK for step in steps)


def _main(action: Action) -> list[Effect]:
    return [effect for effect in action.did if effect.verb in DOES[action.name]]


def _action(action: Action, records: Records) -> list[Finding]:
    """One action: it has ended; done means one effect, failed means words."""
    name = f"{action.name} ({action.request_id})"
    if action.finished is None:
        return [Finding("stuck", action.server, f"{name} has not ended")]
    found = [
        Finding("stuck", action.server, f"step {step.name} of {name} is {step.state}")
        for step in action.steps
        if step.state in ("queued", "running", "waiting")
    ]
    if action.name not in DOES or not action.key:
        return found
    main = _main(action)
    times = len(main) if {effect.verb for effect in main} != {BUILT} else 1
    if times > 1:
        found.append(Finding("double", action.server, f"{name} had {times} effects"))
    if action.message == "Error" and not action.outcome:
        found.append(Finding("lost", action.server, f"{name} failed without a word"))
    if action.message is None and not times and not _needed_nothing(action, records):
        words = f"{name} is recorded as done ({action.outcome}), without an effect"
        found.append(Finding("lost", action.server, words))
    return found


def _needed_nothing(action: Action, records: Records) -> bool:
    """It was so already; or a deleted server was nowhere (not yet built, shelved, on its way); a copy is its image."""
    if action.name == "delete":
        there = [effect.verb for effect in records.effects.get(action.server, []) if effect.verb in COMES_AND_GOES]
        return not there or there[-1] in ("destroyed", "migrated out")
    if action.name in EFFECT_ELSEWHERE:
        return True
    return action.outcome.startswith(NOTHING_TO_DO)


def of_server(uuid: str, records: Records) -> list[Finding]:
    """At rest, in one cell, on one host, as the hypervisor says; in ERROR only with a fault."""
    rows = [row for row in records.servers.get(uuid, []) if not row.deleted]
    found = []
    if uuid in records.waiting:
        found.append(Finding("stuck", uuid, "its build request waits"))
    if len(rows) > 1:
        found.append(Finding("double", uuid, f"in {len(rows)} cells"))
    on = {host: guests[uuid] for host, guests in records.guests.items() if uuid in guests}
    if len(on) > 1:
        found.append(Finding("double", uuid, f"guests on {', '.join(on)}"))
    for row in rows:
        found += _row(row, on, records)
    return found


def _row(row: Server, on: dict[str, int], records: Records) -> list[Finding]:
    if row.task_state or row.vm_state == "building":
        return [Finding("stuck", row.uuid, f"it is {row.vm_state}/{row.task_state}")]
    if row.vm_state == "error":
        return [] if row.has_fault else [Finding("lost", row.uuid, "it is in ERROR, and nobody says why")]
    power = on.get(row.host)
    if power != POWER[_before(row, records) if row.vm_state == "resized" else row.vm_state]:
        return [Finding("lost", row.uuid, f"it is {row.vm_state} on record, and its guest is {power} on {row.host}")]
    return []


def _before(row: Server, records: Records) -> str:
    """What a server was when its resize began: on or off."""
    moves = [action for action in records.actions[row.uuid] if action.was and action.name in ("resize", "migrate")]
    return next(action.was or "" for action in reversed(moves) if action.finished and action.message is None)


def sums(cloud: Cloud, cell: str) -> list[str]:
    """Nodes whose sums are not those of their claims."""
    summed = """
        SELECT n.host, n.vcpus_used, n.memory_mb_used, n.disk_gb_used, coalesce(sum(a.vcpus), 0),
               coalesce(sum(a.memory_mb), 0), coalesce(sum(a.disk_gb), 0)
        FROM compute_computenode n LEFT JOIN compute_allocation a ON a.node_id = n.id GROUP BY n.id"""
    rows = [(host, [int(number) for number in numbers]) for host, *numbers in cloud.ask(cell, summed)]
    return [f"{host}: used {n[:3]}, claimed {n[3:]}" for host, n in rows if n[:3] != n[3:]]
