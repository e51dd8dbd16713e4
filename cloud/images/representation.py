"""Image records to JSON and back, and the rules of who may write what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import jsonschema

from cloud import errors
from cloud.caller import Caller
from cloud.images.models import Image, Status, Visibility
from cloud.images.schemas import CREATE, READ_ONLY, RESERVED, WRITABLE

_MOST_PROPERTIES = 128
_TEXTS = ("name", "owner", "disk_format", "container_format")


def as_json(image: Image) -> dict[str, Any]:
    """Return Glance's view of an image: its properties are beside its own fields."""
    url = f"/v2/images/{image.pk}"
    return image.properties | {
        "id": image.pk,
        "name": image.name or None,
        "status": image.status,
        "visibility": image.visibility,
        "owner": image.owner or None,
        "disk_format": image.disk_format or None,
        "container_format": image.container_format or None,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "size": image.size,
        "virtual_size": image.virtual_size,
        "checksum": image.checksum or None,
        "os_hash_algo": image.os_hash_algo or None,
        "os_hash_value": image.os_hash_value or None,
        "protected": image.protected,
        "os_hidden": image.os_hidden,
        "tags": image.tags,
        "created_at": _time(image.created_at),
        "updated_at": _time(image.updated_at),
        "self": url,
        "file": f"{url}/file",
        "schema": "/v2/schemas/image",
    }


def require_owner(caller: Caller, image: Image) -> None:
    """Raise Forbidden unless the caller is a member of the owning project, or admin."""
    own = caller.project_id and caller.project_id == image.owner and caller.has_role("member")
    if not (own or caller.is_admin):
        raise errors.Forbidden("You are not authorized to modify this image.")


def write(image: Image, fields: dict[str, Any], caller: Caller) -> None:
    """Set valid values. Raises Forbidden for fields the caller may not set, TooLarge for too many properties."""
    for key, value in fields.items():
        if key in READ_ONLY:
            raise errors.Forbidden(f"Attribute '{key}' is read-only.")
        if key in WRITABLE:
            _write_own(image, key, value, caller)
        elif key not in RESERVED:
            image.properties[key] = value
    if len(image.properties) > _MOST_PROPERTIES:
        raise errors.TooLarge(
            f"The limit has been exceeded on the number of allowed image properties: {_MOST_PROPERTIES}."
        )


def patch(image: Image, operations: list[dict[str, Any]], caller: Caller) -> None:
    """Apply a JSON patch. Raises BadRequest, Forbidden, TooLarge; Conflict for a missing property or tag."""
    for operation in operations:
        key, *rest = (_step(step) for step in operation["path"][1:].split("/"))
        if key in READ_ONLY or key == "id":
            raise errors.Forbidden(f"Attribute '{key}' is read-only.")
        if key == "tags" and rest:
            fields = {"tags": _patched_tags(list(image.tags), operation, rest)}
        elif rest or not key:
            raise errors.BadRequest(f"Invalid JSON pointer for this resource: '{operation['path']}'")
        elif operation["op"] == "remove":
            _remove(image, key)
            continue
        else:
            if operation["op"] == "replace" and key not in WRITABLE:
                _must_have(image, key)
            fields = {key: operation["value"]}
        _check(fields)
        write(image, fields, caller)


def _write_own(image: Image, key: str, value: Any, caller: Caller) -> None:
    if key == "visibility" and value == Visibility.PUBLIC and image.visibility != value and not caller.is_admin:
        raise errors.Forbidden("You are not authorized to complete publicize_image action.")
    if key == "owner" and (value or "") != image.owner and not caller.is_admin:
        raise errors.Forbidden("You are not permitted to modify 'owner' on this image.")
    if key in ("disk_format", "container_format") and image.status != Status.QUEUED:
        if (value or "") != getattr(image, key):
            raise errors.Forbidden(f"Attribute {key} can be only replaced for a queued image.")
        return
    if key == "tags":
        value = sorted(set(value))
    elif key in _TEXTS:
        value = value or ""
    elif key in ("min_disk", "min_ram"):
        value = int(value)  # the schema accepts 1.0 as an integer
    setattr(image, key, value)


def _check(fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if not jsonschema.Draft202012Validator(CREATE).is_valid({key: value}):
            raise errors.BadRequest(f"Invalid value for attribute '{key}'.")


def _remove(image: Image, key: str) -> None:
    if key in WRITABLE:
        raise errors.Forbidden(f"Property {key} may not be removed.")
    _must_have(image, key)
    del image.properties[key]


def _must_have(image: Image, key: str) -> None:
    if key not in image.properties:
        raise errors.Conflict(f"Property {key} does not exist.")


def _patched_tags(tags: list[str], operation: dict[str, Any], rest: list[str]) -> list[Any]:
    """Apply an operation inside the list, as patches made by libraries do: /tags/0, /tags/-."""
    place = rest[0]
    if place == "-" and operation["op"] == "add" and len(rest) == 1:
        return [*tags, operation["value"]]
    if len(rest) > 1 or not (place.isascii() and place.isdigit() and len(place) < 5 and int(place) <= len(tags)):
        raise errors.BadRequest(f"Invalid JSON pointer for this resource: '{operation['path']}'")
    start = int(place)
    if operation["op"] == "add":
        return [*tags[:start], operation["value"], *tags[start:]]
    if start == len(tags):
        raise errors.Conflict("There is no tag at this place.")
    return tags[:start] + ([operation["value"]] if operation["op"] == "replace" else []) + tags[start + 1 :]


def _step(raw: str) -> str:
    return raw.replace("~1", "/").replace("~0", "~")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
