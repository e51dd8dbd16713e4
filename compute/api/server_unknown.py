"""A server whose cell is down, from the global side alone: spec 3, and beyond it what it was when last heard of."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from cells.models import Cell, InstanceMapping, RequestSpec
from cloud.caller import Caller
from compute import groups, last_known, server_rows
from compute.api import server_view
from compute.api.base import links
from compute.microversion import Version
from compute.models import Instance

SINCE: Version = (2, 69)  # clients of older versions count on every key, so their lists leave such servers out
LIVING = Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True)
STATUS = "UNKNOWN"


class Mapped(NamedTuple):
    """What a list needs of a mapping: a record of each of a thousand would cost more than the rest of the answer."""

    server_id: str
    project_id: str
    created_at: datetime | str  # as the database's driver gives it


def of(down: Iterable[Cell], project_id: str, limit: int) -> list[Mapped]:
    """The living servers of cells that are down, newest first; `project_id` "": of all projects."""
    mappings = InstanceMapping.objects.filter(LIVING, cell__in=down)
    if project_id:
        mappings = mappings.filter(project_id=project_id)
    newest = mappings.order_by("-created_at", "server_id")[:limit]
    return [Mapped(*row) for row in server_rows.unconverted(newest.values_list(*Mapped._fields))]


def listed(mappings: list[Mapped], caller: Caller, *, detail: bool, known: bool) -> list[dict[str, Any]]:
    """Items of GET /servers and /servers/detail; `known`: with what they were when last heard of."""
    shape = _detail if detail else _brief
    servers = [shape(mapping) for mapping in mappings]
    before = last_known.of([server["id"] for server in servers], caller) if known else {}
    return [server | before[server["id"]] if server["id"] in before else server for server in servers]


def shown(mapping: InstanceMapping, version: Version, caller: Caller, *, known: bool) -> dict[str, Any]:
    """GET /servers/{id}."""
    spec = RequestSpec.objects.filter(pk=mapping.server_id).first()
    if version < SINCE:
        return _with_every_key(mapping, spec, version, caller)
    server = _show(mapping, spec)
    if version >= (2, 71):
        server["server_groups"] = groups.ids_of(mapping.server_id)
    return server | (last_known.of([mapping.pk], caller).get(mapping.pk, {}) if known else {})


def _brief(mapping: InstanceMapping | Mapped) -> dict[str, Any]:
    server_id = mapping.server_id
    return {"id": server_id, "status": STATUS, "links": links(f"/servers/{server_id}")}


def _detail(mapping: InstanceMapping | Mapped) -> dict[str, Any]:
    moment = str(mapping.created_at)  # a datetime, or the text of one
    return _brief(mapping) | {"tenant_id": mapping.project_id, "created": f"{moment[:10]}T{moment[11:19]}Z"}


def _show(mapping: InstanceMapping, spec: RequestSpec | None) -> dict[str, Any]:
    flavor = dict(spec.flavor) if spec else {}
    flavor.pop("id", None)
    return _detail(mapping) | {
        "user_id": mapping.user_id or STATUS,
        "image": server_view.image(spec.image_id if spec else ""),
        "flavor": flavor,
        "OS-EXT-AZ:availability_zone": (spec.availability_zone if spec else "") or STATUS,
        "OS-EXT-STS:power_state": 0,
    }


def _with_every_key(
    mapping: InstanceMapping, spec: RequestSpec | None, version: Version, caller: Caller
) -> dict[str, Any]:
    """As clients before 2.69 expect a server: with all keys of their version, empty where nothing is known."""
    flavor = dict(spec.flavor) if spec else {}
    row = server_rows.of(Instance(
        uuid=mapping.server_id, project_id=mapping.project_id, user_id=mapping.user_id or STATUS, vm_state="",
        flavor_id=flavor.pop("id", ""), flavor=flavor, image_id=spec.image_id if spec else "",
        availability_zone=(spec.availability_zone if spec else "") or STATUS, root_device_name="",
        created_at=mapping.created_at, updated_at=mapping.created_at,
    ))  # fmt: skip
    server = server_view.full(row, server_view.View.of(version, caller))
    server["OS-EXT-STS:vm_state"] = None
    return server | ({"host_status": STATUS} if "host_status" in server else {})
