"""Servers that go to another host of their cell: where to, what is claimed there, and what the record says after.

A move is an action with `source` and `destination` in its params. It holds room on both hosts from the moment
the destination is picked until one of them is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.db import Error, close_old_connections
from django.db.models import QuerySet
from django.utils import timezone

from cloud.errors import BadRequest, Conflict
from compute import claims, groups, journal, state
from compute.errors import StateConflict
from compute.lifecycle import Run
from compute.models import ComputeNode, Flavor, Instance, InstanceAction, Service, Step
from compute.models.host import COMPUTE
from compute.models.instance import new_uuid
from compute.scheduler import pick
from compute.scheduler import wanted as scheduler_wanted
from compute.state import Move
from compute.virt.base import MIGRATES, Command, Progress, VirtError, Watch

LOOK_EVERY = 0.4  # seconds between two looks for an abort: each is a few small queries


def begun_at(instance: Instance, new_flavor: Flavor | None = None) -> dict[str, Any]:
    """The params every move begins with. `flavor_numbers`: the rows of the old and the new flavor, as Nova names them.

    A flavor that is deleted has none. Reads the global side: in the API or on a conductor only.
    """
    old = Flavor.objects.filter(flavor_id=instance.flavor_id).values_list("pk", flat=True).first()
    return {
        "flavor_numbers": [old, new_flavor.pk if new_flavor is not None else old],
        "source": instance.host, "source_node": instance.node, "source_zone": instance.availability_zone,
        "uuid": new_uuid(),
    }  # fmt: skip


def must_support(instance: Instance) -> None:
    """Raises BadRequest when the hypervisor of the server's host cannot hand guests over."""
    node = ComputeNode.objects.filter(hypervisor_hostname=instance.node).first()
    if node is not None and node.hypervisor_type not in MIGRATES:
        raise BadRequest(
            f"Migration pre-check error: servers cannot be moved from host {instance.host}: not offered yet with "
            f"hypervisor type {node.hypervisor_type}."
        )


def must_take_part(host: str, *, leaving: bool = False) -> None:
    """Raises Conflict while a host drains: a move would wait for it, and is cancelled when a drain begins.

    One that is being emptied may be left.
    """
    service = _service(host)
    drains = not service.takes_requests if leaving else bool(service.drain_state)
    if drains:
        raise Conflict(f"Host {host} is draining: no server moves from or to it until it takes work again.")


def is_up(host: str) -> bool:
    """Whether its heart beats."""
    return Service.objects.filter(binary=COMPUTE, host=host).exists() and _service(host).is_up


def takes_part(host: str) -> bool:
    """Whether a step for it would be carried out now."""
    return is_up(host) and not _service(host).drain_state


def must_be_possible(instance: Instance, host: str) -> None:
    """A destination of the caller's own choice. Raises BadRequest, Conflict."""
    if not ComputeNode.objects.filter(host=host).exists():
        raise BadRequest(f"Compute host {host} could not be found.")
    if host == instance.host:
        raise BadRequest(f"Unable to migrate instance ({instance.uuid}) to current host ({host}).")
    if not is_up(host):
        raise BadRequest(f"Compute service of {host} is unavailable at this time.")
    must_take_part(host)


def candidates(
    source_node: str, *, forced: bool = False, what: pick.Wanted | None = None
) -> list[pick.HostState]:
    """Hosts with the same kind of hypervisor; `forced`: also those taken out of service.

    `what`: they also say which of its neighbours they have.
    """
    kind = ComputeNode.objects.filter(hypervisor_hostname=source_node).values_list("hypervisor_type", flat=True).first()
    alike = (host for host in pick.read_hosts(wanted=what) if kind in (None, host.node.hypervisor_type))
    return [replace(host, enabled=host.enabled or forced) for host in alike]


def wanted(
    instance: Instance, host: str = "", *, forced: bool = False, size: Mapping[str, Any] | None = None,
    zone: str | None = None,
) -> pick.Wanted:  # fmt: skip
    """What the server needs and was wished for it, in the zone it is pinned to, on one host if that was asked.

    `size`: columns as they will be; `zone`: another one. Reads the global side: on a conductor or the API only.
    """
    pinned = instance.pinned_availability_zone if zone is None else zone
    where = {"availability_zone": "" if forced else pinned, "host": host, "forced": forced and bool(host)}
    return scheduler_wanted.of_instance(instance, where, size)


def possible(instance: Instance, what: pick.Wanted, *, forced: bool = False) -> list[pick.HostState]:
    """The hosts of its cell that could take the server now, the best first. Raises NoValidHost."""
    hosts = candidates(instance.node, forced=forced, what=what)
    return pick.rank(what, hosts, avoid=frozenset({instance.host}))


def claim(run: Run, what: pick.Wanted, *, forced: bool = False) -> None:
    """Pick a host and claim room there. Picked already is success. Raises NoValidHost."""
    if run.params.get("destination"):
        return

    def look() -> tuple[pick.Wanted, list[pick.HostState]]:
        now = replace(what, group=groups.of_server(what.server_id))
        return now, candidates(run.params["source_node"], forced=forced, what=now)

    def note(host: pick.HostState) -> None:
        node = host.node.hypervisor_hostname
        journal.change_params(run.action, destination=host.host, destination_node=node, zone=host.zone)

    found = pick.claim_best(look, frozenset({run.params["source"]}), note, run.fenced)
    run.note(f"from {run.params['source']} to {found.host}")


def give_back(run: Run) -> None:
    """What is claimed of the destination is free again, unless a newer move of the server is going there."""
    node = run.params.get("destination_node")
    host = run.params.get("destination", "")
    if node and not lives_at(run, host) and not _goes_to(run, host).exists():
        claims.release(run.instance.uuid, node)


def must_go_on(run: Run) -> None:
    """While nothing has happened yet, a host that drains ends the move. Raises VirtError."""
    source, destination = run.params["source"], run.params.get("destination")
    if not _service(source).takes_requests:
        raise VirtError(f"host {source} drains")
    if destination and _service(destination).drain_state:
        raise VirtError(f"host {destination} drains")


def arrived(run: Run, **also: Any) -> None:
    """The guest lives at the destination. In the transaction that closes the step which saw to it."""
    params = run.params
    state.moved(
        run.instance, host=params["destination"], node=params["destination_node"],
        availability_zone=params.get("zone", ""), **also,
    )  # fmt: skip


def forget(run: Run, host: str) -> None:
    """Nothing is left of the guest on a host it has left for good, unless it came back or is about to."""
    if not _is_expected(run, host):
        run.hypervisor.forget(run.instance.uuid)


def end_at(run: Run, host: str) -> None:
    """As `forget`, for a host where the guest itself still is."""
    if not _is_expected(run, host):
        run.hypervisor.destroy(run.instance.uuid)


def _is_expected(run: Run, host: str) -> bool:
    """Whether it lives on a host, or that host is ready for it: what is there before that is only in its way.

    Steps of one server run one at a time, so this stays true while the step runs.
    """
    ready = _goes_to(run, host).filter(steps__name="expect", steps__state=Step.State.DONE)
    return lives_at(run, host) or ready.exists()


def lives_at(run: Run, host: str) -> bool:
    """Whether a host is the server's home, on record."""
    return run.instance.host == host and not run.instance.deleted


def _goes_to(run: Run, host: str) -> QuerySet[InstanceAction]:
    """Newer moves of the server to a host."""
    return InstanceAction.objects.filter(
        server_id=run.instance.uuid, finished_at__isnull=True, pk__gt=run.action.pk, params__destination=host
    )


def watching(run: Run, move: Move, *, deadline: datetime | None = None) -> Watch:
    """Puts the progress on record, and reads there whether somebody wants it to stop; at the deadline it does."""
    looked = 0.0

    def watch(progress: Progress) -> Command:
        nonlocal looked
        if time.monotonic() - looked < LOOK_EVERY:
            return Command.GO_ON
        looked = time.monotonic()
        try:
            command = _look(run, move, progress)
        except StateConflict:  # a delete or an operator took the server
            return Command.ABORT
        except Error:  # nobody can be asked, so it goes on
            close_old_connections()
            return Command.GO_ON
        except journal.StepLost:  # the process that has the step now may count on what runs: it is not ours to end
            return Command.GO_ON
        return Command.ABORT if deadline is not None and timezone.now() > deadline else command

    return watch


def _look(run: Run, move: Move, progress: Progress) -> Command:
    total, left = progress.memory_total + progress.disk_total, progress.memory_left + progress.disk_left
    percent = 100 * (total - left) // total if total else 0
    with run.fenced():
        state.during(run.instance, move, progress=percent)
        journal.change_params(run.action, progress=asdict(progress))
        journal.say(run.step, f"{percent} % of {total >> 20} MiB after {progress.seconds:.0f} s")
    if run.params.get("abort"):
        return Command.ABORT
    return Command.END_NOW if run.params.get("force") else Command.GO_ON


def _service(host: str) -> Service:
    return Service.objects.get(binary=COMPUTE, host=host)
