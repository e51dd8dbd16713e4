"""Rows a test needs in a cell, and what the global side knows of them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell, InstanceMapping
from compute.models import ComputeNode, Instance, Service
from compute.models.host import COMPUTE


def service(cell: Cell, host: str, binary: str = COMPUTE, **columns: Any) -> Service:
    """A service that beats."""
    with target_cell(cell):
        return Service.objects.create(
            binary=binary, host=host, **({"last_seen_up": timezone.now()} | columns)
        )


def node(cell: Cell, host: str, **columns: Any) -> ComputeNode:
    """A hypervisor of the host."""
    facts = {
        "hypervisor_hostname": host, "hypervisor_type": "fake", "hypervisor_version": 1,
        "host_ip": "127.0.0.1", "vcpus": 8, "memory_mb": 16384, "disk_gb": 100, "updated_at": timezone.now(),
    }  # fmt: skip
    with target_cell(cell):
        return ComputeNode.objects.create(host=host, **(facts | columns))


def server(cell: Cell, *, mapped: bool = True, queued: bool = False, **columns: Any) -> Instance:
    """A server in a cell, and its mapping."""
    now = timezone.now()
    asked = {
        "uuid": str(uuid4()), "project_id": "p1", "user_id": "u1", "display_name": "web", "host": "h1",
        "vm_state": "active", "power_state": 1, "vcpus": 1, "memory_mb": 64, "disk_gb": 1, "flavor_id": "1",
        "flavor": {"original_name": "m1.tiny"}, "created_at": now, "updated_at": now,
    } | columns  # fmt: skip
    with target_cell(cell):
        instance = Instance.objects.create(**asked)
    if mapped:
        mapping(cell, instance.uuid, queued=queued, project_id=instance.project_id)
    return instance


def mapping(
    cell: Cell | None, server_id: str, *, queued: bool = False, project_id: str = "p1"
) -> InstanceMapping:
    """What the global side knows of a server."""
    return InstanceMapping.objects.create(
        server_id=server_id, cell=cell, project_id=project_id, user_id="u1", queued_for_delete=queued,
        created_at=timezone.now(),
    )  # fmt: skip
