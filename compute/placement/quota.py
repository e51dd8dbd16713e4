"""Quota limits and usage of projects, exact under parallel requests.

Servers, cores and memory are counted from the global database (mappings and request specs), so a down cell changes
nothing. With STILLWATER_QUOTA_COUNT_FROM=cells the sizes come from the cells, and a down cell may forbid a create
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
    """The quota usage of a project's living servers. `ram` in MiB."""

    instances: int = 0
    cores: int = 0
    ram: int = 0


def limits(project_id: str) -> dict[str, int]:
    """Return every limit of a project: its own or the default; -1 = unlimited."""
    own = dict(Quota.objects.filter(project_id=project_id).values_list("resource", "limit"))
    return {**settings.QUOTA_DEFAULTS, **{k: v for k, v in own.items() if k in settings.QUOTA_DEFAULTS}}


def usage(project_id: str, sizes: Sizes | None = None) -> Usage:
    """Return the usage, by one query of the global database; `sizes` (reported by cells) take precedence."""
    if sizes:
        return Usage(*quota_usage.added(project_id, sizes))
    living = InstanceMapping.objects.filter(Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True))
    ids = living.filter(project_id=project_id).values("server_id")
    found = RequestSpec.objects.filter(project_id=project_id, server_id__in=ids).aggregate(
        instances=Count("server_id"), cores=Sum("vcpus"), ram=Sum("memory_mb")
    )
    return Usage(found["instances"], found["cores"] or 0, found["ram"] or 0)


def at_most(wanted: int, each: Usage, allowed: Mapping[str, int]) -> int:
    """Return how many servers of this size fit if the project had none; at most `wanted`."""
    return max(0, _room(wanted, each, Usage(), allowed))


def reserve_quota(
    project_id: str, least: int, most: int, each: Usage, allowed: Mapping[str, int], sizes: Sizes | None = None
) -> int:
    """Return how many of `most` servers fit, inside the global transaction that has just recorded all `most`.

    Takes the project's quota lock first, so parallel requests of one project are counted one after the other. Raises
    QuotaExceeded with Nova's text when fewer than `least` fit.
    """
    lock(project_id)
    counted = asdict(usage(project_id, sizes))
    used = Usage(**{name: held - most * getattr(each, name) for name, held in counted.items()})
    room = _room(most, each, used, allowed)
    if room < least:
        _refuse({name: least * size for name, size in asdict(each).items()}, used, allowed)
    return min(room, most)


def _room(most: int, each: Usage, used: Usage, allowed: Mapping[str, int]) -> int:
    """For how many servers there is room; `most` where nothing is limited."""
    free = [
        (allowed[name] - getattr(used, name)) // size
        for name, size in asdict(each).items() if allowed[name] >= 0 and size
    ]  # fmt: skip
    return min([most, *free])


def must_fit(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Raise QuotaExceeded when one of the project's servers may not grow to this size."""
    spec = RequestSpec.objects.get(pk=server_id)
    more = {"cores": max(0, vcpus - spec.vcpus), "ram": max(0, memory_mb - spec.memory_mb)}
    _refuse({name: size for name, size in more.items() if size}, usage(project_id), limits(project_id))


def grow(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Raise the recorded size of a server to at least this, inside a global transaction. Raises QuotaExceeded."""
    lock(project_id)
    must_fit(project_id, server_id, vcpus, memory_mb)
    counted = RequestSpec.objects.filter(pk=server_id)
    counted.filter(vcpus__lt=vcpus).update(vcpus=vcpus)
    counted.filter(memory_mb__lt=memory_mb).update(memory_mb=memory_mb)


def must_fit_if_uncounted(project_id: str, server_id: str, vcpus: int, memory_mb: int) -> None:
    """Raise QuotaExceeded when an uncounted (deleted) server no longer fits. A counted server passes."""
    if InstanceMapping.objects.filter(pk=server_id, queued_for_delete=True).exists():
        more = {"instances": 1, "cores": vcpus, "ram": memory_mb}
        _refuse(more, usage(project_id), limits(project_id))


def recount_undeleted(project_id: str, server_id: str, size: Mapping[str, Any]) -> None:
    """Count a server that was marked as deleted again, inside a global transaction. Raises QuotaExceeded."""
    lock(project_id)
    must_fit_if_uncounted(project_id, server_id, size["vcpus"], size["memory_mb"])
    InstanceMapping.objects.filter(pk=server_id).update(queued_for_delete=False)
    count_as(server_id, size)


def count_as(server_id: str, size: Mapping[str, Any]) -> None:
    """Set the recorded size of a server; `size` are columns of its row."""
    flavor = {"id": size["flavor_id"], **size["flavor"]}
    RequestSpec.objects.filter(pk=server_id).update(
        vcpus=size["vcpus"], memory_mb=size["memory_mb"], disk_gb=size["disk_gb"], flavor=flavor
    )


def _refuse(asked: Mapping[str, int], used: Usage, allowed: Mapping[str, int]) -> None:
    """Raise QuotaExceeded with Nova's text when a requested amount exceeds its limit."""
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
    """Raise Forbidden when there are more metadata keys than the project may have per server."""
    allowed = limits(project_id)["metadata_items"]
    if 0 <= allowed < len(metadata):
        raise Forbidden(f"Maximum number of metadata items exceeds {allowed}")


def check_keypairs(project_id: str, user_id: str) -> None:
    """Raise Forbidden when the user has reached the limit of key pairs."""
    allowed = limits(project_id)["key_pairs"]
    if 0 <= allowed <= KeyPair.objects.filter(user_id=user_id).count():
        raise Forbidden("Quota exceeded, too many key pairs.")


def check_server_groups(project_id: str) -> None:
    """Raise QuotaExceeded when the project has reached the limit; in the global transaction that creates a group."""
    lock(project_id)
    allowed = limits(project_id)["server_groups"]
    if 0 <= allowed <= ServerGroup.objects.filter(project_id=project_id).count():
        raise QuotaExceeded("Quota exceeded, too many server groups.")


def set_limits(project_id: str, wanted: Mapping[str, int]) -> None:
    """Set limits of a project."""
    for resource, limit in wanted.items():
        Quota.objects.update_or_create(
            project_id=project_id, resource=resource, defaults={"limit": limit}
        )


def forget(project_id: str) -> None:
    """Delete the limits of a project: the defaults apply."""
    Quota.objects.filter(project_id=project_id).delete()


def lock(project_id: str) -> None:
    """Take the project's quota lock until the caller's global transaction ends. Call it inside that transaction."""
    turn = ProjectLock.objects.filter(project_id=project_id)
    if not turn.update(turns=F("turns") + 1):
        ProjectLock.objects.bulk_create([ProjectLock(project_id=project_id)], ignore_conflicts=True)
        turn.update(turns=F("turns") + 1)
    assert connections["default"].in_atomic_block, "hold() outside a transaction guards nothing"  # noqa: S101


