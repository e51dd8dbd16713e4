"""Server groups: who is in one, and whether a host that just gave a server room may keep it.

Who really is where is what the claims say, in the cells. The row of the node that is claimed is the lock: whoever
holds it reads the members again, so of two that come to one host at once the second finds the first.

The home of an affine group is the one host its servers may be claimed on. It is taken over by another host only
under the lock of the home's node, and a claim looks at it under the lock of its own; so two first members end on
one host, and a home nobody is at any more does not bind the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

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
    """A group as one of its servers sees it: its policy, and the others that are in it."""

    id: int
    policy: str
    most: int = 1  # servers per host, of anti-affinity
    home: str = ""  # of affinity
    others: frozenset[str] = frozenset()


def of_server(server_id: str) -> Group | None:
    """The group a server is in; two queries."""
    member = ServerGroupMember.objects.select_related("group").filter(server_id=server_id).first()
    if member is None:
        return None
    group = member.group
    most = int(group.rules.get("max_server_per_host", 1))
    return Group(group.pk, group.policy, most, group.host, frozenset(_others(group.pk, server_id)))


def ids_of(server_id: str) -> list[str]:
    """The uuids of the groups a server is in: one or none."""
    return list(ServerGroup.objects.filter(members__server_id=server_id).values_list("uuid", flat=True))


def living(groups: Sequence[ServerGroup]) -> QuerySet[ServerGroupMember]:
    """Their members nobody has asked to delete, oldest first. No cell is asked, so none can be down."""
    alive = InstanceMapping.objects.filter(LIVING, pk=OuterRef("server_id"))
    return ServerGroupMember.objects.filter(Exists(alive), group__in=groups).order_by("pk")


def count(project_id: str) -> int:
    """How many groups a project has."""
    return ServerGroup.objects.filter(project_id=project_id).count()


def join(uuid: str, server_ids: Collection[str], allowed: int) -> None:
    """Make servers members, inside the global transaction that records them. Raises BadRequest, QuotaExceeded.

    The group's row is locked: it is not deleted meanwhile, and parallel requests are counted one after the other.
    """
    group = ServerGroup.objects.select_for_update(of=("self",)).filter(uuid=uuid).first()
    if group is None:
        raise unknown(uuid)
    if 0 <= allowed < living([group]).count() + len(server_ids):
        raise QuotaExceeded("Quota exceeded, too many servers in group")
    rows = (ServerGroupMember(group=group, server_id=server_id) for server_id in server_ids)
    ServerGroupMember.objects.bulk_create(rows)


def unknown(uuid: str) -> BadRequest:
    """What a hint that names no group of the project is told."""
    return BadRequest(f"Instance group {uuid} could not be found.")


def admits(group: Group, server_id: str, node: ComputeNode) -> bool:
    """Whether a server that just took room on a node may have it; in the transaction that locked the node's row."""
    if group.policy not in (AFFINITY, ANTI_AFFINITY):
        return True
    held = Allocation.objects.filter(server_id__in=_others(group.id, server_id))
    if group.policy == ANTI_AFFINITY:
        return held.filter(node=node).count() < group.most
    return not held.exclude(node__host=node.host).exists() and _is_home(group.id, node.host)


def take_home(group: Group | None, server_id: str, host: str, may_ask: Callable[[Cell], bool]) -> bool:
    """Before a claim on a host: it becomes the home of an affine group, unless others are elsewhere.

    Only in a cell that may be asked can it be seen that the old home is deserted. Never inside a transaction: two
    nodes locked at once could be a deadlock.
    """
    if group is None or group.policy != AFFINITY:
        return True
    home = ServerGroup.objects.filter(pk=group.id).values_list("host", flat=True).first()
    if home in (None, "", host):
        return True
    found = HostMapping.objects.select_related("cell").filter(host=home).first()
    taken = ServerGroup.objects.filter(pk=group.id, host=home)
    if found is None:  # the host is gone, and nobody can hold anything of it
        return bool(taken.update(host=host))
    if not may_ask(found.cell):
        return False
    with target_cell(found.cell) as alias, transaction.atomic(using=alias):
        inventory.lock(home)
        held = Allocation.objects.filter(server_id__in=_others(group.id, server_id))
        return not held.exclude(node__host=host).exists() and bool(taken.update(host=host))


def _is_home(group_id: int, host: str) -> bool:
    """Compare and set; a group that was deleted meanwhile binds nobody."""
    rows = ServerGroup.objects.filter(pk=group_id)
    return bool(rows.filter(host__in=("", host)).update(host=host)) or not rows.exists()


def _others(group_id: int, server_id: str) -> list[str]:
    """Also those that are being deleted: they are somewhere until they are gone."""
    members = ServerGroupMember.objects.filter(group=group_id).exclude(server_id=server_id)
    return list(members.values_list("server_id", flat=True))
