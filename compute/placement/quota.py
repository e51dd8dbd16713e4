"""Limits of projects, exact under parallel requests.

Servers, cores and memory are counted from the global side (mappings and request specs), so a cell that is down changes
nothing. With QUOTA_COUNT_FROM=cells their sizes come from the cells, and one that is down may forbid a boot
(`compute.placement.quota_usage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import Count, F, Q, Sum

from cells.models import InstanceMapping, RequestSpec
from cloud.errors import Forbidden, QuotaExceeded
from compute.models import KeyPair, ProjectLock, Quota, ServerGroup
from compute.placement import quota_usage
from compute.placement.quota_usage import Sizes

RESOURCES = tuple(settings.QUOTA_DEFAULTS)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a project's living servers hold. `ram` in MiB."""

    instances: int = 0
    cores: int = 0
    ram: int = 0


def limits(project_id: str) -> dict[str, int]:
    """Every limit of a project: its own or the default; -1 = unlimited."""
    own = dict(Quota.objects.filter(project_id=project_id).values_list("resource", "limit"))
    return {**settings.QUOTA_DEFAULTS, **{k: v for k, v in own.items() if k in settings.QUOTA_DEFAULTS}}


def usage(project_id: str, sizes: Sizes | None = None) -> Usage:
    """Counted now, in two global queries, with any number of cells down; with the `sizes` that cells gave, by those."""
    if sizes:
        return Usage(*quota_usage.added(project_id, sizes))
    living = InstanceMapping.objects.filter(Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True))
    ids = living.filter(project_id=project_id).values("server_id")
    found = RequestSpec.objects.filter(project_id=project_id, server_id__in=ids).aggregate(
        instances=Count("server_id"), cores=Sum("vcpus"), ram=Sum("memory_mb")
    )
    return Usage(found["instances"], found["cores"] or 0, found["ram"] or 0)


def at_most(wanted: int, each: Usage, allowed: Mapping[str, int]) -> int:
    """How many servers of this size could be had if the project had none."""
    return max(0, _room(wanted, each, Usage(), allowed))


def reserve_quota(
    project_id: str, least: int, most: int, each: Usage, allowed: Mapping[str, int], sizes: Sizes | None = None
) -> int:
    """How many of `most` servers fit, inside the global transaction that has just recorded them.

    The project's lock row is updated first: parallel requests of one project are counted one after the other.
    Raises QuotaExceeded with Nova's text when `least` do not fit.
    """
    lock(project_id)
    counted = asdict(usage(project_id, sizes))
    used = Usage(**{name: held - most * getattr(each, name) for name, held in counted.items()})
    room = _room(most, each, used, allowed)
    if room < least:
        _refuse({name: least * size for name, size in asdict(each).items()}, used, allowed)
    return min(room, most)


def _room(most: int, each: Usage, used: Usage, allowed: Mapping[str, int]) -> int:
    """For how many; `most` where nothing is limited."""
    free = [
        (allowed[name] - getattr(used, name)) // size
        for name, size in asdict(each).items() if allowed[name] >= 0 and size
    ]  # fmt: skip
    return min([most, *free])


def must_fit(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Raises QuotaExceeded when one of the project's servers may not become so large."""
    spec = RequestSpec.objects.get(pk=server_id)
    more = {"cores": max(0, vcpus - spec.vcpus), "ram": max(0, memory_mb - spec.memory_mb)}
    _refuse({name: size for name, size in more.items() if size}, usage(project_id), limits(project_id))


def grow(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Count a server as at least so large, inside a global transaction. Raises QuotaExceeded."""
    lock(project_id)
    must_fit(project_id, server_id, vcpus, memory_mb)
    counted = RequestSpec.objects.filter(pk=server_id)
    counted.filter(vcpus__lt=vcpus).update(vcpus=vcpus)
    counted.filter(memory_mb__lt=memory_mb).update(memory_mb=memory_mb)


def must_have_room(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Raises QuotaExceeded when a server that is not counted does not fit any more. Counted already is fine."""
    if InstanceMapping.objects.filter(pk=server_id, queued_for_delete=True).exists():
        more = {"instances": 1, "cores": vcpus, "ram": memory_mb}
        _refuse(more, usage(project_id), limits(project_id))


def count_again(project_id: str, server_id: str, size: Mapping[str, Any]) -> None:
    """Count a server that was about to be deleted, inside a global transaction. Raises QuotaExceeded."""
    lock(project_id)
    must_have_room(project_id, server_id, size["vcpus"], size["memory_mb"])
    InstanceMapping.objects.filter(pk=server_id).update(queued_for_delete=False)
    count_as(server_id, size)


def count_as(server_id: str, size: Mapping[str, Any]) -> None:
    """Count a server as exactly so large; `size` are columns of its row."""
    flavor = {"id": size["flavor_id"], **size["flavor"]}
    RequestSpec.objects.filter(pk=server_id).update(
        vcpus=size["vcpus"], memory_mb=size["memory_mb"], disk_gb=size["disk_gb"], flavor=flavor
    )


def _refuse(asked: Mapping[str, int], used: Usage, allowed: Mapping[str, int]) -> None:
    """Raises QuotaExceeded with Nova's text when something of it is too much."""
    over = [
        name for name, wanted in asked.items()
        if allowed[name] >= 0 and getattr(used, name) + wanted > allowed[name]
    ]  # fmt: skip
    if not over:
        return
    requested = ", ".join(str(asked[name]) for name in over)
    have = ", ".join(str(getattr(used, name)) for name in over)
    of = ", ".join(f"{allowed[name]} {name}" for name in over)
    raise QuotaExceeded(
        f"Quota exceeded for {', '.join(over)}: Requested {requested}, but already used {have} of {of}"
    )


def check_metadata(project_id: str, metadata: Mapping[str, str]) -> None:
    """Raises Forbidden when there are more keys than the project may have per server."""
    allowed = limits(project_id)["metadata_items"]
    if 0 <= allowed < len(metadata):
        raise Forbidden(f"Maximum number of metadata items exceeds {allowed}")


def check_keypairs(project_id: str, user_id: str) -> None:
    """Raises Forbidden when the user has all the key pairs it may have."""
    allowed = limits(project_id)["key_pairs"]
    if 0 <= allowed <= KeyPair.objects.filter(user_id=user_id).count():
        raise Forbidden("Quota exceeded, too many key pairs.")


def check_server_groups(project_id: str) -> None:
    """In the global transaction that makes one. Raises QuotaExceeded when the project has all it may have."""
    lock(project_id)
    allowed = limits(project_id)["server_groups"]
    if 0 <= allowed <= ServerGroup.objects.filter(project_id=project_id).count():
        raise QuotaExceeded("Quota exceeded, too many server groups.")


def set_limits(project_id: str, wanted: Mapping[str, int]) -> None:
    """Give a project limits of its own."""
    for resource, limit in wanted.items():
        Quota.objects.update_or_create(
            project_id=project_id, resource=resource, defaults={"limit": limit}
        )


def forget(project_id: str) -> None:
    """Back to the defaults."""
    Quota.objects.filter(project_id=project_id).delete()


def lock(project_id: str) -> None:
    """Until the caller's global transaction ends, nothing else is counted for the project."""
    turn = ProjectLock.objects.filter(project_id=project_id)
    if not turn.update(turns=F("turns") + 1):
        ProjectLock.objects.bulk_create([ProjectLock(project_id=project_id)], ignore_conflicts=True)
        turn.update(turns=F("turns") + 1)
    assert connections["default"].in_atomic_block, "hold() outside a transaction guards nothing"  # noqa: S101


