"""POST /servers, from the validated body to the rows that a scheduler works from.

A request is either refused or accepted here. What is accepted is written in one global transaction: mapping, request
spec, build request; the last thing in it is the quota check, under the project's quota lock.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from cells.models import BuildRequest, InstanceMapping, RequestSpec
from cloud.caller import Caller
from compute.models import Flavor, Instance
from compute.models.instance import new_uuid
from compute.operations import dispatch
from compute.placement import quota, quota_usage, server_groups

NETWORK_LABEL = "auto_allocated_network"
USER_NETWORK_ADDRESS = "10.0.2.15"  # what libvirt's user-mode network gives every guest


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """A validated and complete request to create servers."""

    caller: Caller
    request_id: str
    name: str
    flavor: Flavor
    image_id: str
    image: dict[str, Any]  # the snapshot kept in the server's row
    image_ticket: str
    count: int = 1
    least: int = 1  # min_count: with room for fewer the request fails; up to `count` as the quota permits
    network: str = "none"
    availability_zone: str = ""
    host: str = ""
    hypervisor_hostname: str = ""
    pinned_zone: str = ""
    columns: dict[str, Any] = field(default_factory=dict)  # description, metadata, tags, key_name ...
    scheduler_hints: dict[str, Any] = field(default_factory=dict)
    forced: bool = False  # skip the filters marked `preference`: the named host takes it
    reservation_id: str = field(default_factory=lambda: f"r-{secrets.token_hex(4)}")


def request_servers(order: BuildOrder) -> list[str]:
    """Record the order; return the ids of the new servers, as many as fit.

    Not in a transaction. Raises QuotaExceeded, Forbidden, BadRequest (no such server group).
    """
    project_id, sizes = order.caller.project_id, quota_usage.sizes(order.caller)
    allowed = quota.limits(project_id)
    each = quota.Usage(1, order.flavor.vcpus, order.flavor.memory_mb)
    ids = [new_uuid() for _ in range(quota.at_most(order.count, each, allowed))]
    with transaction.atomic(using="default"):
        # Written first and counted then: the project's quota lock, for which other requests wait, is held briefly.
        _record(order, ids)
        fitting = quota.reserve_quota(project_id, order.least, len(ids), each, allowed, sizes)
        _take_back(ids[fitting:])
        ids = ids[:fitting]
        if "group" in order.scheduler_hints:
            server_groups.join(order.scheduler_hints["group"], ids, allowed["server_group_members"])
        dispatch.schedule(*ids)
    return ids


def _record(order: BuildOrder, ids: list[str]) -> None:
    now, caller, flavor = timezone.now(), order.caller, order.flavor
    owner = {"project_id": caller.project_id, "user_id": caller.user_id}
    InstanceMapping.objects.bulk_create(
        InstanceMapping(server_id=server_id, created_at=now, **owner) for server_id in ids
    )
    RequestSpec.objects.bulk_create(RequestSpec(
        server_id=server_id, vcpus=flavor.vcpus, memory_mb=flavor.memory_mb, disk_gb=flavor.disk_gb,
        flavor={"id": flavor.flavor_id, **flavor.snapshot()}, image_id=order.image_id,
        availability_zone=order.availability_zone, host=order.host,
        hypervisor_hostname=order.hypervisor_hostname, scheduler_hints=order.scheduler_hints, **owner,
    ) for server_id in ids)  # fmt: skip
    BuildRequest.objects.bulk_create(BuildRequest(
        server_id=server_id, request_id=order.request_id, created_at=now, sent_at=now, sends=1,
        instance=_columns(order, server_id, index) | owner | {"created_at": now.isoformat()},
        action={"image_ticket": order.image_ticket, "forced": order.forced}, **owner,
    ) for index, server_id in enumerate(ids))  # fmt: skip


def _take_back(ids: list[str]) -> None:
    """Delete the rows of this transaction that exceed the quota."""
    if ids:
        for model in (BuildRequest, RequestSpec, InstanceMapping):
            model.objects.filter(pk__in=ids).delete()


def _columns(order: BuildOrder, server_id: str, index: int) -> dict[str, Any]:
    """The columns of the server's future row, as JSON."""
    suffix = "" if order.count == 1 else f"-{index + 1}"
    name, flavor = f"{order.name}{suffix}", order.flavor
    asked = order.columns.get("hostname")
    return {
        **order.columns,
        "hostname": f"{asked}{suffix}" if asked else _hostname(name, server_id),
        "uuid": server_id,
        "display_name": name,
        "vcpus": flavor.vcpus,
        "memory_mb": flavor.memory_mb,
        "disk_gb": flavor.disk_gb,
        "flavor_id": flavor.flavor_id,
        "flavor": flavor.snapshot(),
        "image_id": order.image_id,
        "image": order.image,
        "network": order.network,
        "addresses": _addresses(order.network),
        "pinned_availability_zone": order.pinned_zone,
        "availability_zone": order.availability_zone,
        "reservation_id": order.reservation_id,
        "launch_index": index,
    }


def cancel(server_id: str) -> bool:
    """Cancel a build request; False when there is none any more, as the server has been placed.

    A scheduler that works on the request finds `delete_requested` and deletes what it placed.
    """
    with transaction.atomic(using="default"):
        request = BuildRequest.objects.select_for_update().filter(pk=server_id).first()
        if request is None:
            return False
        BuildRequest.objects.filter(pk=server_id).update(delete_requested=True)
        InstanceMapping.objects.filter(pk=server_id).update(queued_for_delete=True)
        nowhere = InstanceMapping.objects.filter(pk=server_id, cell__isnull=True)
        if nowhere.exists() and BuildRequest.objects.filter(BuildRequest.is_free(), pk=server_id).delete()[0]:
            nowhere.delete()
            RequestSpec.objects.filter(pk=server_id).delete()
    return True


def unplaced(request: BuildRequest) -> Instance:
    """Return a server that is in no cell yet as an unsaved row that the API can show."""
    created = request.created_at
    columns = {k: v for k, v in request.instance.items() if k != "created_at"}
    return Instance(
        **{**columns, "addresses": {}, "host": "", "node": ""}, vm_state="building", task_state="scheduling",
        created_at=created, updated_at=created,
    )  # fmt: skip


def _addresses(network: str) -> dict[str, Any]:
    if network != "user":
        return {}
    mac = "52:54:00:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))
    return {
        NETWORK_LABEL: [
            {"version": 4, "addr": USER_NETWORK_ADDRESS, "OS-EXT-IPS-MAC:mac_addr": mac,
             "OS-EXT-IPS:type": "fixed"}
        ]
    }  # fmt: skip


def _hostname(name: str, server_id: str) -> str:
    """A host name made from a display name, as in Nova."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in name.lower())
    return kept.strip("-.")[:63] or f"server-{server_id}"
