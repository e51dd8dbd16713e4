"""The JSON schemas of images: for /v2/schemas, and to check create and update."""

from __future__ import annotations

from typing import Any

from cloud.images.format_check import FORMATS
from cloud.images.models import Status, Visibility

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2147483647}
_TEXT = {"type": ["null", "string"], "maxLength": 255}
_TIME = {"type": "string", "readOnly": True}
_SIZE = {"type": ["null", "integer"], "readOnly": True}
_LINK = {"type": "string", "readOnly": True}
_FIXED_TEXT = {"type": ["null", "string"], "readOnly": True}

WRITABLE: dict[str, Any] = {
    "name": _TEXT,
    "visibility": {"type": "string", "enum": Visibility.values},
    "owner": {"type": ["null", "string"], "maxLength": 64},
    "disk_format": {"type": ["null", "string"], "enum": [None, *FORMATS]},
    "container_format": {
        "type": ["null", "string"],
        "enum": [None, "bare", "ami", "aki", "ari", "ovf", "ova"],
    },
    "min_disk": _COUNT,
    "min_ram": _COUNT,
    "protected": {"type": "boolean"},
    "os_hidden": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 255}, "maxItems": 128},
}
READ_ONLY: dict[str, Any] = {
    "status": {"type": "string", "enum": Status.values, "readOnly": True},
    "checksum": _FIXED_TEXT,
    "os_hash_algo": _FIXED_TEXT,
    "os_hash_value": _FIXED_TEXT,
    "size": _SIZE,
    "virtual_size": _SIZE,
    "created_at": _TIME,
    "updated_at": _TIME,
    "self": _LINK,
    "file": _LINK,
    "schema": _LINK,
    "direct_url": _LINK,
    "locations": {"type": "array", "readOnly": True},
    "stores": _LINK,
}
_ID = {"type": "string", "pattern": r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z"}
RESERVED = frozenset({"id", *WRITABLE, *READ_ONLY})

CREATE: dict[str, Any] = {
    "type": "object",
    "properties": {"id": _ID, **WRITABLE},
    "additionalProperties": {"type": "string", "maxLength": 65535},
    "propertyNames": {"minLength": 1, "maxLength": 255},
    "maxProperties": 150,
}
PATCH: dict[str, Any] = {
    "type": "array",
    "maxItems": 300,
    "items": {
        "type": "object",
        "required": ["op", "path"],
        "properties": {
            "op": {"enum": ["add", "replace", "remove"]},
            "path": {"type": "string", "pattern": "^/"},
        },
        "if": {"properties": {"op": {"enum": ["add", "replace"]}}},
        "then": {"required": ["value"]},
    },
}
IMAGE: dict[str, Any] = {
    "name": "image",
    "properties": {"id": _ID, **WRITABLE, **READ_ONLY},
    "additionalProperties": {"type": "string"},
    "links": [
        {"rel": "self", "href": "{self}"},
        {"rel": "enclosure", "href": "{file}"},
        {"rel": "describedby", "href": "{schema}"},
    ],
}
IMAGES: dict[str, Any] = {
    "name": "images",
    "properties": {
        "images": {"type": "array", "items": IMAGE},
        "schema": {"type": "string"},
        "first": {"type": "string"},
        "next": {"type": "string"},
    },
    "links": [
        {"rel": "first", "href": "{first}"},
        {"rel": "next", "href": "{next}"},
        {"rel": "describedby", "href": "{schema}"},
    ],
}
