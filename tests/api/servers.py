"""Servers for the tests of lists and pages: rows written straight into cells, with every column a server has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from cells.context import target_cell
from cells.models import BuildRequest, Cell, InstanceMapping, RequestSpec
from compute.models import Instance
from tests.conftest import PROJECT

BORN = datetime(2026, 1, 1, 12, 0, 0, 250000, tzinfo=UTC)
FLAVOR = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "original_name": "m1.tiny", "extra_specs": {}}
IMAGE = "12121212-3434-4565-8787-909090909090"


def server(cell: Cell, name: str = "a", age: int = 0, **columns: Any) -> str:
    """A running server in a cell, `age` minutes older than BORN; its id."""
    born = columns.pop("created_at", BORN - timedelta(minutes=age))
    is_cell0 = cell.is_cell0
    fields: dict[str, Any] = {
        "uuid": str(uuid4()), "project_id": PROJECT, "user_id": "someone", "display_name": name, "hostname": name,
        "host": "" if is_cell0 else "host1", "node": "" if is_cell0 else "host1", "availability_zone": "nova",
        "vm_state": "error" if is_cell0 else "active", "power_state": 0 if is_cell0 else 1, "vcpus": 1,
        "memory_mb": 512, "disk_gb": 1, "flavor_id": "1", "flavor": FLAVOR, "image_id": IMAGE,
        "created_at": born, "updated_at": born, "launched_at": None if is_cell0 else born, **columns,
    }  # fmt: skip
    with target_cell(cell):
        Instance.objects.create(**fields)
    gone = bool(fields.get("deleted"))
    _global(fields["uuid"], cell, fields["project_id"], born, queued_for_delete=gone)
    return str(fields["uuid"])


def unplaced(name: str = "u", age: int = 0, project: str = PROJECT, **columns: Any) -> str:
    """A server no cell has yet; its id."""
    born, server_id = BORN - timedelta(minutes=age), str(uuid4())
    _global(server_id, None, project, born)
    wanted = {
        "uuid": server_id, "project_id": project, "user_id": "someone", "display_name": name, "hostname": name,
        "description": None, "vcpus": 1, "memory_mb": 512, "disk_gb": 1, "flavor_id": "1", "flavor": FLAVOR,
        "image_id": IMAGE, "image": {}, "metadata": {}, "tags": "", "availability_zone": "", "launch_index": 0,
        "reservation_id": "r-1", "created_at": born.isoformat(), **columns,
    }  # fmt: skip
    BuildRequest.objects.create(
        server_id=server_id, project_id=project, user_id="someone", request_id="req-1", created_at=born,
        instance=wanted,
    )  # fmt: skip
    return server_id


def _global(server_id: str, cell: Cell | None, project: str, born: datetime, **mapping: Any) -> None:
    owner = {"project_id": project, "user_id": "someone"}
    InstanceMapping.objects.create(server_id=server_id, cell=cell, created_at=born, **owner, **mapping)
    RequestSpec.objects.create(
        server_id=server_id, vcpus=1, memory_mb=512, disk_gb=1, flavor={"id": "1", **FLAVOR}, image_id=IMAGE, **owner
    )
