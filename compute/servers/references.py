"""What a request refers to: an image, a key pair, user data. Errors have Nova's texts."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cloud.caller import Caller
from cloud.errors import BadRequest, NotFound
from cloud.images import service
from cloud.images.models import Image
from compute.contract import validation
from compute.models import KeyPair
from compute.power import sync_policy
from compute.shutdown import options


def image(image_id: str, caller: Caller, *, missing: str = "Can not find requested image") -> Image:
    """Return an image that the caller may use. Raises BadRequest."""
    validation.check({"imageRef": image_id}, {"properties": {"imageRef": validation.UUID}})
    try:
        found = service.visible_to(caller, image_id)
    except NotFound as exc:
        raise BadRequest(missing) from exc
    if found.status != "active":
        raise BadRequest(f"Image {image_id} is not active.")
    return found


def must_fit(chosen: Image, memory_mb: int, disk_gb: int) -> None:
    """Raise BadRequest when the image is too large for the flavor; a disk of 0 GiB is as large as the image needs."""
    if memory_mb < chosen.min_ram:
        raise BadRequest("Flavor's memory is too small for requested image.")
    size = chosen.virtual_size or chosen.size or 0
    if disk_gb and (disk_gb < chosen.min_disk or disk_gb << 30 < size):
        raise BadRequest(
            f"Flavor's disk is too small for requested image. Flavor disk is {disk_gb << 30} bytes, "
            f"image is {size} bytes."
        )


def image_facts(chosen: Image) -> dict[str, Any]:
    """Return what the host needs to know of the image; kept in the server's row."""
    return {
        "name": chosen.name,
        "disk_format": chosen.disk_format,
        "size": chosen.size,
        "virtual_size": chosen.virtual_size,
        "checksum": chosen.checksum,
        "min_ram": chosen.min_ram,
        "min_disk": chosen.min_disk,
        "properties": {key: str(value) for key, value in chosen.properties.items()},
    }


def user_data(text: str) -> str:
    """Return the text. Raises BadRequest unless it is base64."""
    try:
        base64.b64decode("".join(text.split()), validate=True)  # many tools wrap lines
    except (binascii.Error, ValueError) as exc:
        raise BadRequest("Userdata content must be base64 encoded.") from exc
    return text


def key(name: str, caller: Caller) -> dict[str, str]:
    """Return the columns of a server with one of the caller's key pairs. Raises BadRequest."""
    found = KeyPair.objects.filter(user_id=caller.user_id, name=name).first()
    if found is None:
        raise BadRequest("Invalid key_name provided.")
    return {"key_name": found.name, "key_data": found.public_key}


METADATA = {**validation.METADATA, "properties": {**options.OWN, **sync_policy.METADATA}}
