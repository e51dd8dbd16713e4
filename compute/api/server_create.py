"""The body of POST /servers: its schema by microversion, and the build order it stands for."""

from __future__ import annotations

from typing import Any

from cells import scatter
from cells.models import CELL0, Cell, HostMapping
from cloud.caller import Caller
from cloud.errors import BadRequest, Forbidden
from cloud.images import tickets
from cloud.images.models import Image
from compute.api import fields
from compute.contract import policy, validation
from compute.contract.microversion import Version
from compute.errors import FlavorNotFound
from compute.models import Flavor, Instance, ServerGroup, Service
from compute.placement import aggregates, quota, server_groups
from compute.servers import flavors, references
from compute.servers.create import BuildOrder
from compute.shutdown import options

_TEXT = {"type": "string"}
_LIST = {"type": "array"}
_SERVERS = {"oneOf": [validation.UUID, {"type": "array", "items": validation.UUID, "uniqueItems": True}]}
_HINTS = {
    "type": "object",
    "properties": {"group": validation.UUID, "same_host": _SERVERS, "different_host": _SERVERS},
}
MOST_AT_ONCE = 1000
_ALWAYS: dict[str, Any] = {
    "name": validation.NAME,
    "flavorRef": {"type": ["string", "integer"], "minLength": 1},
    "imageRef": {"type": "string", "maxLength": 255},
    "networks": {"oneOf": [_LIST, {"type": "string", "enum": ["none", "auto"]}]},
    "adminPass": _TEXT,
    "metadata": references.METADATA,
    **options.OWN_OR_NOT,
    "OS-DCF:diskConfig": {"type": "string", "enum": ["AUTO", "MANUAL"]},
    "accessIPv4": validation.IPV4,
    "accessIPv6": validation.IPV6,
    "availability_zone": {"type": "string", "minLength": 1, "maxLength": 255},
    "block_device_mapping": _LIST,
    "block_device_mapping_v2": _LIST,
    "config_drive": validation.BOOLEAN,
    "key_name": {"type": "string", "minLength": 1, "maxLength": 255},
    "min_count": validation.POSITIVE,
    "max_count": validation.POSITIVE,
    "return_reservation_id": validation.BOOLEAN,
    "security_groups": {
        "type": "array",
        "items": {"type": "object", "properties": {"name": validation.NAME}, "additionalProperties": False},
    },
    "user_data": {"type": "string", "maxLength": 65535},
}
_SINCE: list[tuple[Version, dict[str, Any]]] = [
    ((2, 19), {"description": {"type": ["string", "null"], "maxLength": 255}}),
    ((2, 52), {"tags": {"type": "array", "maxItems": 50, "items": validation.TAG}}),
    ((2, 63), {"trusted_image_certificates": {"type": ["array", "null"], "maxItems": 50, "items": _TEXT}}),
    ((2, 74), {"host": {"type": "string", "minLength": 1, "maxLength": 255},
               "hypervisor_hostname": {"type": "string", "minLength": 1, "maxLength": 255}}),
    ((2, 90), {"hostname": validation.HOSTNAME}),
    ((2, 94), {"hostname": validation.FQDN}),
]  # fmt: skip


def schema_for(version: Version) -> dict[str, Any]:
    """Return the JSON schema of the whole body at a microversion."""
    properties = dict(_ALWAYS)
    for since, added in _SINCE:
        if version >= since:
            properties |= added
    if version <= (2, 56):
        properties["personality"] = _LIST
    required = ["name", "flavorRef", *(["networks"] if version >= (2, 37) else [])]
    server = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {
            "server": server,
            "os:scheduler_hints": _HINTS,
            "OS-SCH-HNT:scheduler_hints": _HINTS,
        },
        "required": ["server"],
        "additionalProperties": False,
    }


def order_of(body: dict[str, Any], caller: Caller, request_id: str) -> BuildOrder:
    """Return the build order of a valid body. Raises BadRequest, Forbidden with Nova's texts."""
    server = body["server"]
    _refuse_unsupported(server)
    flavor = _flavor(str(server["flavorRef"]), caller)
    image = _image(server, caller)
    _fits(image, flavor, caller)
    columns = _columns(server, caller)
    quota.check_metadata(caller.project_id, columns["metadata"])
    zone, host, node, forced = _destination(server, caller)
    least, most = _counts(server)
    hints = body.get("os:scheduler_hints") or body.get("OS-SCH-HNT:scheduler_hints") or {}
    if "group" in hints:
        _check_group(hints["group"], caller)
    network = "user" if server.get("networks") == "auto" else "none"
    return BuildOrder(
        caller=caller, request_id=request_id, name=server["name"].strip(), flavor=flavor, image_id=image.id,
        image=references.image_facts(image), image_ticket=tickets.issue(image.id, "read"), count=most, least=least,
        network=network, availability_zone=zone, host=host, hypervisor_hostname=node,
        pinned_zone=zone, columns=columns, scheduler_hints=hints, forced=forced,
    )  # fmt: skip


def _refuse_unsupported(server: dict[str, Any]) -> None:
    """Raise BadRequest for what this cloud does not offer; never accept and ignore it."""
    if isinstance(server.get("networks"), list) and server["networks"]:
        raise BadRequest("This cloud has no network service: 'networks' can be 'none' or 'auto'.")
    if server.get("personality"):
        raise BadRequest("File injection is not offered by this cloud.")
    if validation.is_true(server.get("config_drive")):
        raise BadRequest("Config drives are not offered by this cloud.")
    if server.get("trusted_image_certificates"):
        raise BadRequest("Image signature certificate validation is not offered by this cloud.")
    for group in server.get("security_groups") or []:
        if group.get("name") != "default":
            raise BadRequest(f"Security group {group.get('name')} not found.")
    devices = [*(server.get("block_device_mapping") or []), *(server.get("block_device_mapping_v2") or [])]
    for device in devices:
        if not _is_the_image(device, server):
            raise BadRequest("Block Device Mapping is Invalid: this cloud has no volume service.")


def _is_the_image(device: Any, server: dict[str, Any]) -> bool:
    """Return whether a block device mapping only repeats `imageRef`."""
    return (
        isinstance(device, dict)
        and device.get("source_type") == "image"
        and device.get("destination_type", "local") == "local"
        and isinstance(device.get("uuid"), str)
        and device["uuid"] == (server.get("imageRef") or device["uuid"])
        and str(device.get("boot_index")) == "0"
    )


def _flavor(flavor_id: str, caller: Caller) -> Flavor:
    """Return the flavor. In a body an unknown flavor is a 400, not a 404."""
    try:
        flavor = flavors.get(flavor_id, caller)
    except FlavorNotFound as unknown:
        raise BadRequest(unknown.message) from unknown
    if flavor.disabled:
        raise BadRequest(FlavorNotFound(flavor_id).message)
    return flavor


def _image(server: dict[str, Any], caller: Caller) -> Image:
    image_id = server.get("imageRef") or ""
    if not image_id:
        if "imageRef" in server or not server.get("block_device_mapping_v2"):
            raise BadRequest("Missing imageRef attribute")
        image_id = server["block_device_mapping_v2"][0]["uuid"]
    return references.image(image_id, caller)


def _fits(image: Image, flavor: Flavor, caller: Caller) -> None:
    rule = "os_compute_api:servers:create:zero_disk_flavor"
    if not flavor.disk_gb and not policy.allows(caller, rule):
        raise Forbidden("Only volume-backed servers are allowed for flavors with zero disk.")
    references.must_fit(image, flavor.memory_mb, flavor.disk_gb)


def _destination(server: dict[str, Any], caller: Caller) -> tuple[str, str, str, bool]:
    """Return (zone, host, node, whether host and node are forced). Raises BadRequest, Forbidden."""
    zone, _, rest = (server.get("availability_zone") or "").partition(":")
    host, _, node = rest.partition(":")
    forced = bool(host or node)
    if forced:
        policy.check(caller, "os_compute_api:servers:create:forced_host")
    asked_host, asked_node = server.get("host", ""), server.get("hypervisor_hostname", "")
    if asked_host or asked_node:
        policy.check(caller, "compute:servers:create:requested_destination")
        if forced:
            raise BadRequest("An availability zone with a host and a requested host exclude each other.")
        host, node = asked_host, asked_node
        if host and not HostMapping.objects.filter(host=host).exists():
            raise BadRequest(f"Compute host {host} could not be found.")
    if zone:
        _check_zone(zone)
    return zone, host, node, forced


def _check_zone(zone: str) -> None:
    """Raise BadRequest for a zone without hosts, unless a cell is down: it may have hosts of that zone."""

    known = aggregates.by_host()

    def zones(_: Cell) -> set[str]:
        hosts = Service.objects.computes().only("host", "availability_zone")
        return {aggregates.zone_of(host, known) for host in hosts}

    found = scatter.gather(Cell.objects.exclude(pk=CELL0), zones)
    if not found.down and not any(zone in known for known in found.values()):
        raise BadRequest("The requested availability zone is not available")


def _check_group(uuid: str, caller: Caller) -> None:
    """Raise BadRequest unless the server group is one of the project's; an admin may name any."""
    found = ServerGroup.objects.filter(uuid=uuid)
    if not (found if caller.is_admin else found.filter(project_id=caller.project_id)).exists():
        raise server_groups.unknown(uuid)


def _counts(server: dict[str, Any]) -> tuple[int, int]:
    least = fields.parse_int("min_count", server.get("min_count", 1), 1)
    most = fields.parse_int("max_count", server.get("max_count", least), 1)
    if least > most:
        raise BadRequest("min_count must be <= max_count")
    if most > MOST_AT_ONCE:
        raise BadRequest(f"At most {MOST_AT_ONCE} servers can be asked for at once.")
    return least, most


def _columns(server: dict[str, Any], caller: Caller) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "description": server.get("description"),
        "metadata": options.written_on(server.get("metadata") or {}, server),
        "tags": Instance.join_tags(list(dict.fromkeys(server.get("tags") or []))),
        "disk_config": server.get("OS-DCF:diskConfig", "MANUAL"),
        "access_ip_v4": server.get("accessIPv4", ""),
        "access_ip_v6": validation.short_ipv6(server.get("accessIPv6", "")),
        "user_data": references.user_data(server.get("user_data") or ""),
    }
    if "hostname" in server:
        columns["hostname"] = server["hostname"]
    if server.get("key_name"):
        columns |= references.key(server["key_name"], caller)
    return columns
