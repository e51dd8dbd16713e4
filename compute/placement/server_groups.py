"""Server groups: membership, and whether a host that has just given a server room may keep it.

Where members are is what the allocations in the cells say. The row of the claimed node is the lock: the transaction
that holds it reads the members again, so of two servers claimed on one host at once the second finds the first.

The home of an affinity group (`ServerGroup.host`) is the one host its servers may be claimed on. Another host takes it
over only under the lock of the home's nodes, and a claim checks it under the lock of its own node. So two first members
end on one host, and a home where no member is left does not bind the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from cells.compiled_query import CompiledQuery
from cells.context import target_cell
from cells.models import Cell, HostMapping, InstanceMapping
from cloud.errors import BadRequest, QuotaExceeded
from compute.models import Allocation, ComputeNode, ServerGroup, ServerGroupMember
from compute.placement import inventory

AFFINITY, ANTI_AFFINITY = "affinity", "anti-affinity"
SOFT_AFFINITY, SOFT_ANTI_AFFINITY = "soft-affinity", "soft-anti-affinity"
POLICIES = (ANTI_AFFINITY, AFFINITY, SOFT_ANTI_AFFINITY, SOFT_AFFINITY)
LIVING = Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True)


@dataclass(frozen=True, slots=True)
class Group:
    """A server group as one of its servers sees it: the policy and the other members."""

    id: int
    policy: str
    most: int = 1  # anti-affinity: servers per host
    home: str = ""  # affinity: the host of its members
    others: frozenset[str] = frozenset()


def of_server(server_id: str) -> Group | None:
    """Return the group of a server, or None; two queries."""
    member = ServerGroupMember.objects.select_related("group").filter(server_id=server_id).first()
    if member is None:
        return None
    group = member.group
    most = int(group.rules.get("max_server_per_host", 1))
    return Group(group.pk, group.policy, most, group.host, frozenset(_others(group.pk, server_id)))


_OF_SERVER = CompiledQuery(
    lambda server_id: ServerGroup.objects.filter(members__server_id=server_id).values_list("uuid"), "server_id"
)


def ids_of(server_id: str) -> list[str]:
    """Return the uuids of the groups of a server: one or none."""
    return [uuid for (uuid,) in _OF_SERVER.rows("default", server_id=server_id)]


def living(groups: Sequence[ServerGroup]) -> QuerySet[ServerGroupMember]:
    """Return the members of groups that are not deleted or being deleted, oldest first. Asks no cell."""
    alive = InstanceMapping.objects.filter(LIVING, pk=OuterRef("server_id"))
    return ServerGroupMember.objects.filter(Exists(alive), group__in=groups).order_by("pk")


def count(project_id: str) -> int:
    """Return how many groups a project has."""
    return ServerGroup.objects.filter(project_id=project_id).count()


def join(uuid: str, server_ids: Collection[str], allowed: int) -> None:
    """Add servers to a group, inside the global transaction that records them. Raises BadRequest, QuotaExceeded.

    Locks the group's row: the group cannot be deleted meanwhile, and parallel requests are counted one after the other.
    """
    group = ServerGroup.objects.select_for_update(of=("self",)).filter(uuid=uuid).first()
    if group is None:
        raise unknown(uuid)
    if 0 <= allowed < living([group]).count() + len(server_ids):
        raise QuotaExceeded("Quota exceeded, too many servers in group")
    rows = (ServerGroupMember(group=group, server_id=server_id) for server_id in server_ids)
    ServerGroupMember.objects.bulk_create(rows)


def unknown(uuid: str) -> BadRequest:
    """Return the error for a scheduler hint that names no group of the project."""
    return BadRequest(f"Instance group {uuid} could not be found.")


def admits(group: Group, server_id: str, node: ComputeNode) -> bool:
    """Whether a server may stay on the node it has just claimed; in the transaction that locked the node's row."""
    if group.policy not in (AFFINITY, ANTI_AFFINITY):
        return True
    held = Allocation.objects.filter(server_id__in=_others(group.id, server_id))
    if group.policy == ANTI_AFFINITY:
        return held.filter(node=node).count() < group.most
    return not held.exclude(node__host=node.host).exists() and _is_home(group.id, node.host)


def take_home(group: Group | None, server_id: str, host: str, may_ask: Callable[[Cell], bool]) -> bool:
    """Make a host the home of an affinity group before a claim; False when members are on another host.

    Only if `may_ask` allows the cell of the old home can this see that no member is left there. Never inside a
    transaction: two locked nodes could deadlock.
    """
    if group is None or group.policy != AFFINITY:
        return True
    home = ServerGroup.objects.filter(pk=group.id).values_list("host", flat=True).first()
    if home in (None, "", host):
        return True
    found = HostMapping.objects.select_related("cell").filter(host=home).first()
    taken = ServerGroup.objects.filter(pk=group.id, host=home)
    if found is None:  # the host was removed, so no server has an allocation there
        return bool(taken.update(host=host))
    if not may_ask(found.cell):
        return False
    with target_cell(found.cell) as alias, transaction.atomic(using=alias):
        inventory.lock(home)
        held = Allocation.objects.filter(server_id__in=_others(group.id, server_id))
        return not held.exclude(node__host=host).exists() and bool(taken.update(host=host))


def _is_home(group_id: int, host: str) -> bool:
    """Compare and set the home. A deleted group allows every host."""
    rows = ServerGroup.objects.filter(pk=group_id)
    return bool(rows.filter(host__in=("", host)).update(host=host)) or not rows.exists()


def _others(group_id: int, server_id: str) -> list[str]:
    """Also members that are being deleted: they hold room until they are gone."""
    members = ServerGroupMember.objects.filter(group=group_id).exclude(server_id=server_id)
    return list(members.values_list("server_id", flat=True))
