"""Partial records of servers whose cell is down, from the global database ("Handling a down cell", Nova spec).

Beyond the spec, an answer can have what is last known of the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from cells.models import Cell, InstanceMapping, RequestSpec
from cloud.caller import Caller
from compute.api import server_view
from compute.api.base import links
from compute.contract.microversion import Version
from compute.models import Instance
from compute.placement import server_groups
from compute.servers import last_known
from compute.servers import rows as servers_rows

SINCE: Version = (2, 69)  # older clients rely on every key, so their lists leave such servers out
LIVING = Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True)
STATUS = "UNKNOWN"


def brief(down: Iterable[Cell], project_id: str, limit: int) -> list[dict[str, Any]]:
    """Return items of GET /servers: living servers of down cells, newest first. `project_id` "": of every project."""
    rows = servers_rows.unconverted(_newest(down, project_id, limit).values_list("server_id"))
    return [_brief(server_id) for (server_id,) in rows]


def detail(down: Iterable[Cell], project_id: str, limit: int) -> list[dict[str, Any]]:
    """Return the same servers as items of GET /servers/detail."""
    # times as text, no model instances: for 1,000 servers those cost more than the rest of the answer
    born = Cast("created_at", TextField())
    newest = _newest(down, project_id, limit).values_list("server_id", "project_id", born)
    return [_detail(*row) for row in servers_rows.unconverted(newest)]


def with_last_known(servers: list[dict[str, Any]], caller: Caller) -> list[dict[str, Any]]:
    """Return the servers, each with what is last known of it."""
    before = last_known.of([server["id"] for server in servers], caller)
    return [server | before[server["id"]] if server["id"] in before else server for server in servers]


def shown(mapping: InstanceMapping, version: Version, caller: Caller, *, known: bool) -> dict[str, Any]:
    """Return the server for GET /servers/{id}; `known`: with what is last known of it."""
    spec = RequestSpec.objects.filter(pk=mapping.server_id).first()
    if version < SINCE:
        return _with_every_key(mapping, spec, version, caller)
    server = _show(mapping, spec)
    if version >= (2, 71):
        server["server_groups"] = server_groups.ids_of(mapping.server_id)
    return server | (last_known.of([mapping.pk], caller).get(mapping.pk, {}) if known else {})


def _newest(down: Iterable[Cell], project_id: str, limit: int) -> QuerySet[InstanceMapping]:
    mappings = InstanceMapping.objects.filter(LIVING, cell__in=down)
    if project_id:
        mappings = mappings.filter(project_id=project_id)
    return mappings.order_by("-created_at", "server_id")[:limit]


def _brief(server_id: str) -> dict[str, Any]:
    return {"id": server_id, "status": STATUS, "links": links(f"/servers/{server_id}")}


def _detail(server_id: str, project_id: str, moment: str) -> dict[str, Any]:
    return {
        "id": server_id, "status": STATUS, "links": links(f"/servers/{server_id}"),
        "tenant_id": project_id, "created": f"{moment[:10]}T{moment[11:19]}Z",
    }  # fmt: skip


def _show(mapping: InstanceMapping, spec: RequestSpec | None) -> dict[str, Any]:
    flavor = dict(spec.flavor) if spec else {}
    flavor.pop("id", None)
    return _detail(mapping.server_id, mapping.project_id, str(mapping.created_at)) | {
        "user_id": mapping.user_id or STATUS,
        "image": server_view.image(spec.image_id if spec else ""),
        "flavor": flavor,
        "OS-EXT-AZ:availability_zone": (spec.availability_zone if spec else "") or STATUS,
        "OS-EXT-STS:power_state": 0,
    }


def _with_every_key(
    mapping: InstanceMapping, spec: RequestSpec | None, version: Version, caller: Caller
) -> dict[str, Any]:
    """Return a server with all keys of its version, empty where unknown: clients before 2.69 rely on every key."""
    flavor = dict(spec.flavor) if spec else {}
    row = servers_rows.of(Instance(
        uuid=mapping.server_id, project_id=mapping.project_id, user_id=mapping.user_id or STATUS, vm_state="",
        flavor_id=flavor.pop("id", ""), flavor=flavor, image_id=spec.image_id if spec else "",
        availability_zone=(spec.availability_zone if spec else "") or STATUS, root_device_name="",
        created_at=mapping.created_at, updated_at=mapping.created_at,
    ))  # fmt: skip
    server = server_view.details(row, server_view.View.of(version, caller))
    server["OS-EXT-STS:vm_state"] = None
    return server | ({"host_status": STATUS} if "host_status" in server else {})
