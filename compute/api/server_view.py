"""The JSON of a server, by microversion (Compute API reference, "Servers")."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from cells.context import current_alias
from cloud.caller import Caller
from compute import state
from compute.api.base import bookmark, links
from compute.contract import policy
from compute.contract.microversion import Version
from compute.models import Instance, Step
from compute.placement import server_groups
from compute.servers import host_status
from compute.servers import rows as servers_rows
from compute.servers.rows import NameRow, ServerRow
from compute.shutdown import status as shutdown_status

_SHOWS_PROGRESS = {"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"}
_SHOWS_FAULT = {"ERROR", "DELETED"}


@dataclass(slots=True)
class View:
    """The caller and microversion of an answer, and the values that all its servers share."""

    version: Version
    caller: Caller
    sees_host: bool = False
    sees_status: bool = False
    images: dict[str, Any] = field(default_factory=dict)  # by image

    @classmethod
    def of(cls, version: Version, caller: Caller) -> View:
        """Return a view, with each policy checked once."""
        return cls(
            version, caller,
            sees_host=policy.allows(caller, "os_compute_api:os-extended-server-attributes"),
            sees_status=version >= (2, 16) and policy.allows(caller, "os_compute_api:servers:show:host_status"),
        )  # fmt: skip

    def image(self, image_id: str) -> Any:
        """Return the `image` of a server, built once per image and answer."""
        found = self.images.get(image_id)
        if found is None:
            found = self.images[image_id] = image(image_id)
        return found


def summary(row: NameRow) -> dict[str, Any]:
    """Return an item of GET /servers."""
    return {"id": row.uuid, "name": row.display_name, "links": links(f"/servers/{row.uuid}")}


def details(row: ServerRow, view: View, *, detail_list: bool = False) -> dict[str, Any]:
    """Return the body of GET /servers/{id}, or an item of GET /servers/detail."""
    version = view.version
    status = state.status(row.vm_state, row.task_state)
    server: dict[str, Any] = {
        "id": row.uuid,
        "name": row.display_name,
        "status": status,
        "tenant_id": row.project_id,
        "user_id": row.user_id,
        "metadata": orjson.Fragment(row.metadata_json),
        "hostId": host_id(row.project_id, row.host),
        "image": view.image(row.image_id),
        "flavor": _flavor(row, version),
        "created": _zulu(row.created_at),
        "updated": _zulu(row.updated_at),
        "addresses": orjson.Fragment(row.addresses_json),
        "accessIPv4": row.access_ip_v4,
        "accessIPv6": row.access_ip_v6,
        "links": links(f"/servers/{row.uuid}"),
        "OS-DCF:diskConfig": row.disk_config,
        "OS-EXT-AZ:availability_zone": row.availability_zone,
        "OS-EXT-STS:task_state": row.task_state,
        "OS-EXT-STS:vm_state": row.vm_state,
        "OS-EXT-STS:power_state": row.power_state,
        "OS-SRV-USG:launched_at": _naive(row.launched_at),
        "OS-SRV-USG:terminated_at": _naive(row.terminated_at),
        "os-extended-volumes:volumes_attached": [],
        "config_drive": "True" if row.config_drive else "",
        "key_name": row.key_name,
    }
    if status in _SHOWS_PROGRESS:
        server["progress"] = row.progress
    if row.fault_json and status in _SHOWS_FAULT:
        server["fault"] = _fault(row.fault_json, view.caller)
    if view.sees_host:
        _add_attributes(server, row, version)
    _add_newer(server, row, view, detail_list=detail_list)
    return server


@dataclass(slots=True)
class CurrentServer:
    """What the cell of a server knows of it now."""

    row: ServerRow
    steps: list[Step]  # with a shutdown timer


def read_current(server_id: str, view: View) -> CurrentServer | None:
    """Read a server of the targeted cell. None: the cell has no such living server."""
    row = servers_rows.living(server_id, with_status=view.sees_status)
    if row is None:
        return None
    return CurrentServer(row, shutdown_status.in_progress(server_id, current_alias()) if row.task_state else [])


def current(server: CurrentServer, view: View) -> dict[str, Any]:
    """Return the JSON of a server, with its shutdown timer if one runs."""
    return details(server.row, view) | _shutdown(server.steps)


def with_columns(instance: Instance, columns: Mapping[str, Any], version: Version, caller: Caller) -> dict[str, Any]:
    """Return the answer of a rebuild: the server's JSON with the new values of `columns`.

    Sets them on `instance`, without saving it.
    """
    for name, value in columns.items():
        setattr(instance, name, value)
    view = View.of(version, caller)
    status = host_status.of_host(str(instance._state.db), instance.host) if view.sees_status else None
    row = servers_rows.of(instance, status)
    server = details(row, view)
    if version < (2, 75):
        server = before_2_75(server) | ({"key_name": row.key_name} if version >= (2, 54) else {})
    return server | ({"user_data": row.user_data or None} if version >= (2, 57) else {})


def before_2_75(server: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of PUT before 2.75: the server's JSON without the fields of API extensions."""
    return {
        name: value for name, value in server.items()
        if not name.startswith(("OS-EXT-", "OS-SRV-USG:", "os-extended-volumes:"))
        and name not in ("config_drive", "key_name", "host_status")
    }  # fmt: skip


@lru_cache(maxsize=4096)
def host_id(project_id: str, host: str) -> str:
    """Return the `hostId`: a hash that identifies the host within one project only; "" without a host."""
    return hashlib.sha224(f"{project_id}{host}".encode()).hexdigest() if host else ""


def image(image_id: str) -> Any:
    """Return the `image` field of a server; "" without an image."""
    if not image_id:
        return ""
    return {"id": image_id, "links": [{"rel": "bookmark", "href": bookmark(f"/images/{image_id}")}]}


def _shutdown(steps: list[Step]) -> dict[str, Any]:
    """Return the shutdown timer of the server's guest, and the elapsed share of its grace period as `progress`."""
    if not steps:
        return {}
    newest = steps[-1]  # all of them wait for one shutdown timer
    passed = shutdown_status.share(newest)
    return {"shutdown": shutdown_status.as_json(newest)} | ({} if passed is None else {"progress": passed})


def _add_attributes(server: dict[str, Any], row: ServerRow, version: Version) -> None:
    """Add the OS-EXT-SRV-ATTR fields, which by default only admins see."""
    server["OS-EXT-SRV-ATTR:host"] = row.host or None
    server["OS-EXT-SRV-ATTR:instance_name"] = f"instance-{row.id:08x}" if row.id else ""
    server["OS-EXT-SRV-ATTR:hypervisor_hostname"] = row.node or None
    if version >= (2, 3):
        server |= {
            "OS-EXT-SRV-ATTR:hostname": row.hostname,
            "OS-EXT-SRV-ATTR:kernel_id": "",
            "OS-EXT-SRV-ATTR:launch_index": row.launch_index,
            "OS-EXT-SRV-ATTR:ramdisk_id": "",
            "OS-EXT-SRV-ATTR:reservation_id": row.reservation_id,
            "OS-EXT-SRV-ATTR:root_device_name": row.root_device_name,
            "OS-EXT-SRV-ATTR:user_data": row.user_data or None,
        }


def _add_newer(server: dict[str, Any], row: ServerRow, view: View, *, detail_list: bool) -> None:
    """Add the fields of later microversions; all have major version 2."""
    minor = view.version[1]
    if minor >= 9:
        server["locked"] = bool(row.locked_by)
    if view.sees_status:
        server["host_status"] = row.host_status
    if minor >= 19:
        server["description"] = row.description
    if minor >= 26:
        server["tags"] = row.tags[1:-1].split(",") if row.tags else []
    if minor >= 63:
        server["trusted_image_certificates"] = None
    if minor >= 71 and not detail_list:
        server["server_groups"] = server_groups.ids_of(row.uuid)
    if minor >= 73:
        server["locked_reason"] = row.locked_reason
    if minor >= 90:
        server["OS-EXT-SRV-ATTR:hostname"] = row.hostname
    if minor >= 96:
        server["pinned_availability_zone"] = row.pinned_availability_zone or None


def _flavor(row: ServerRow, version: Version) -> Any:
    if version >= (2, 47):
        return orjson.Fragment(row.flavor_json)
    href = bookmark(f"/flavors/{row.flavor_id}")
    return {"id": row.flavor_id, "links": [{"rel": "bookmark", "href": href}]}


def _fault(fault_json: str, caller: Caller) -> dict[str, Any]:
    fault = orjson.loads(fault_json)
    shown = {key: fault[key] for key in ("code", "created", "message") if key in fault}
    if "details" in fault and (caller.is_admin or fault.get("code") != 500):
        shown["details"] = fault["details"]
    return shown


def _zulu(text: str) -> str:
    """`2026-11-20 21:30:50.264347` -> `2026-11-20T21:30:50Z`."""
    return f"{text[:10]}T{text[11:19]}Z"


def _naive(text: str | None) -> str | None:
    """Return a time as Nova shows it here: microseconds, no zone."""
    if text is None:
        return None
    fraction = text[19:26].partition("+")[0] if text[19:20] == "." else ""  # PostgreSQL: .264+00
    return f"{text[:10]}T{text[11:19]}{fraction:0<7}" if fraction else f"{text[:10]}T{text[11:19]}.000000"
