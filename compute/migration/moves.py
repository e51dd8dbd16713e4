"""Moving servers to another host of their cell: choosing and claiming the destination, cleanup.

A move has allocations on both hosts from the moment the destination is picked until one of the hosts is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from django.db.models import QuerySet

from cloud.errors import BadRequest, Conflict
from compute import state
from compute.models import ComputeNode, Flavor, Instance, InstanceAction, Service, Step
from compute.models.instance import new_uuid
from compute.operations import journal, registry, versions
from compute.operations.action import ActionParams, ServerAction, StepContext
from compute.placement import claims, server_groups
from compute.scheduler import requirements as scheduler_wanted
from compute.scheduler import select
from compute.virt.base import MIGRATES, Progress, VirtError


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveParams(ActionParams):
    """The parameters of an action that takes a server to another host."""

    uuid: str = ""  # of the migration, in os-migrations
    # row ids of the old and the new flavor, which Nova shows; None for a deleted flavor
    flavor_numbers: list[int | None] = field(default_factory=lambda: [None, None])
    source_node: str = ""
    source_zone: str = ""
    host: str = ""  # the destination that the request names; "": any
    forced: bool = False  # to that host without asking the scheduler's filters
    destination_node: str = ""
    zone: str = ""  # of the destination
    arrival: dict[str, str] = field(default_factory=dict)  # what `pre_migrate` told the source about the destination
    progress: Progress | None = None  # as the source last reported
    abort: bool = False  # requested while it was under way
    force: bool = False  # complete it now; requested while it was under way


M = TypeVar("M", bound=MoveParams)


class Migration(ServerAction[M]):
    """Base class of the actions in which the hypervisors of two hosts hand a guest over: live and cold migrations."""

    def check_obstacles(self, instance: Instance) -> None:
        """Raise BadRequest for a host that cannot migrate guests."""
        must_support(instance)

    def pre_migrate(self, run: StepContext[M]) -> None:
        """Prepare the destination and record where the source reaches it."""
        arrival = run.hypervisor.pre_migrate(run.instance.as_guest())
        run.change_params(lambda params: replace(params, arrival=dict(arrival)))

    def cancel_pre_migrate(self, run: StepContext[M]) -> None:
        """Undo the preparation of the destination."""
        run.hypervisor.cancel_pre_migrate(run.instance.uuid)

    def cleanup_source(self, run: StepContext[M]) -> None:
        """Remove what is left on the source, unless the guest has come back there."""
        remove_stale(run, run.params.source)


def begun_at(instance: Instance, params: M, new_flavor: Flavor | None = None) -> M:
    """Return the params of a new move from the server's host. Reads the global database: in the API or a conductor."""
    old = Flavor.objects.filter(flavor_id=instance.flavor_id).values_list("pk", flat=True).first()
    return replace(
        params, uuid=new_uuid(), flavor_numbers=[old, new_flavor.pk if new_flavor is not None else old],
        source=instance.host, source_node=instance.node, source_zone=instance.availability_zone,
    )  # fmt: skip


def must_support(instance: Instance) -> None:
    """Raise BadRequest when the hypervisor of the server's host cannot migrate guests."""
    node = ComputeNode.objects.filter(hypervisor_hostname=instance.node).first()
    if node is not None and node.hypervisor_type not in MIGRATES:
        raise BadRequest(
            f"Migration pre-check error: servers cannot be moved from host {instance.host}: not offered yet with "
            f"hypervisor type {node.hypervisor_type}."
        )


def must_not_drain(host: str, *, leaving: bool = False) -> None:
    """Raise Conflict while a host drains: a move would wait for it, and is cancelled when a drain begins.

    With `leaving` a host that is being emptied is allowed.
    """
    service = _service(host)
    drains = not service.takes_requests if leaving else bool(service.drain_state)
    if drains:
        raise Conflict(f"Host {host} is draining: no server moves from or to it until it takes work again.")


def is_up(host: str) -> bool:
    """Whether the compute service of a host exists and is up."""
    service = Service.objects.of_host(host)
    return service is not None and service.is_up


def can_run_steps(host: str) -> bool:
    """Whether a step on the host would be run now: it is up and neither draining nor being emptied."""
    return is_up(host) and not _service(host).drain_state


def must_be_possible(instance: Instance, host: str) -> None:
    """Check a destination that the caller named. Raises BadRequest, Conflict."""
    if not ComputeNode.objects.filter(host=host).exists():
        raise BadRequest(f"Compute host {host} could not be found.")
    if host == instance.host:
        raise BadRequest(f"Unable to migrate instance ({instance.uuid}) to current host ({host}).")
    if not is_up(host):
        raise BadRequest(f"Compute service of {host} is unavailable at this time.")
    must_not_drain(host)


def candidates(
    source_node: str, *, forced: bool = False, what: select.Requirements | None = None
) -> list[select.HostState]:
    """Return the hosts of the cell with the same hypervisor type; `forced`: disabled hosts count as enabled.

    `what`: fill in `HostState.neighbours` for these requirements.
    """
    kind = ComputeNode.objects.filter(hypervisor_hostname=source_node).values_list("hypervisor_type", flat=True).first()
    alike = (host for host in select.read_hosts(wanted=what) if kind in (None, host.node.hypervisor_type))
    return [replace(host, enabled=host.enabled or forced) for host in alike]


def wanted(
    instance: Instance, host: str = "", *, forced: bool = False, size: Mapping[str, Any] | None = None,
    zone: str | None = None,
) -> select.Requirements:  # fmt: skip
    """Return the requirements of a server for the scheduler: size, hints, its pinned zone, optionally one host.

    `size`: columns as they will be; `zone`: instead of the pinned one. Reads the global database: on a conductor or in
    the API only.
    """
    pinned = instance.pinned_availability_zone if zone is None else zone
    where = {"availability_zone": "" if forced else pinned, "host": host, "forced": forced and bool(host)}
    return scheduler_wanted.of_instance(instance, where, size)


def possible(instance: Instance, what: select.Requirements, *, forced: bool = False) -> list[select.HostState]:
    """Return the hosts of the server's cell that could take it now, the best first. Raises NoValidHost."""
    hosts = candidates(instance.node, forced=forced, what=what)
    return select.rank(what, hosts, avoid=frozenset({instance.host}))


def claim(run: StepContext[MoveParams], what: select.Requirements, *, forced: bool = False) -> None:
    """Pick a host, claim room there and record it as destination. Idempotent. Raises NoValidHost."""
    params = run.params
    if params.destination:
        return
    version = versions.needed_by_host(registry.named(run.action.key).all_steps())

    def look() -> tuple[select.Requirements, list[select.HostState]]:
        now = replace(what, group=server_groups.of_server(what.server_id), service_version=version)
        return now, candidates(params.source_node, forced=forced, what=now)

    def note(host: select.HostState) -> None:
        node = host.node.hypervisor_hostname
        journal.change_params(run.action, MoveParams, lambda params: replace(
            params, destination=host.host, destination_node=node, zone=host.zone,
        ))  # fmt: skip

    found = select.claim_best(look, frozenset({params.source}), note, run.fenced)
    run.note(f"from {params.source} to {found.host}")


def release_claim(run: StepContext[MoveParams]) -> None:
    """Release the allocation at the destination, unless the server lives there or a newer move goes there."""
    host, node = run.params.destination, run.params.destination_node
    if node and not lives_at(run, host) and not _goes_to(run, host).exists():
        claims.release(run.instance.uuid, node)


def raise_if_draining(run: StepContext[MoveParams]) -> None:
    """Raise VirtError when the source or destination drains; called while the guest is still untouched."""
    source, destination = run.params.source, run.params.destination
    if not _service(source).takes_requests:
        raise VirtError(f"host {source} drains")
    if destination and _service(destination).drain_state:
        raise VirtError(f"host {destination} drains")


def arrived(run: StepContext[MoveParams], **also: Any) -> None:
    """Record that the guest lives at the destination. In the transaction that closes the step which moved it."""
    params = run.params
    state.set_location(
        run.instance, host=params.destination, node=params.destination_node, availability_zone=params.zone, **also,
    )  # fmt: skip


def remove_stale(run: StepContext, host: str) -> None:
    """Remove what is left of the guest on a host it has left, unless it lives there or is about to."""
    if not _is_expected(run, host):
        run.hypervisor.cleanup_source(run.instance.uuid)


def destroy_stale(run: StepContext, host: str) -> None:
    """As `remove_stale()`, for a host where the guest itself still exists (`destroy`, not `cleanup_source`)."""
    if not _is_expected(run, host):
        run.hypervisor.destroy(run.instance.uuid)


def _is_expected(run: StepContext, host: str) -> bool:
    """Whether the server lives on the host, or a newer move has already prepared that host.

    Before that preparation what is there is stale. Steps of one server run one at a time, so the answer stays true
    while the step runs.
    """
    ready = _goes_to(run, host).filter(steps__name=Migration.pre_migrate.__name__, steps__state=Step.State.DONE)
    return lives_at(run, host) or ready.exists()


def lives_at(run: StepContext, host: str) -> bool:
    """Whether the host is the server's home by its record."""
    return run.instance.host == host and not run.instance.deleted


def _goes_to(run: StepContext, host: str) -> QuerySet[InstanceAction]:
    """Newer open moves of the server to the host."""
    return InstanceAction.objects.filter(
        server_id=run.instance.uuid, finished_at__isnull=True, pk__gt=run.action.pk, params__destination=host
    )


def _service(host: str) -> Service:
    return Service.objects.computes().get(host=host)
