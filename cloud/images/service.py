"""The image functions for the compute API, which runs in the same process."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from cloud import errors, log
from cloud.caller import Caller
from cloud.images import file_store
from cloud.images.models import Image, Status, Visibility, new_id
from cloud.images.schemas import RESERVED

logger = log.get(__name__)
_OPEN = (Visibility.PUBLIC, Visibility.COMMUNITY)


def visible(caller: Caller) -> QuerySet[Image]:
    """Return the images that the caller may see: public, community and own ones; all for admins."""
    found = Image.objects.exclude(status=Status.DELETED)
    if caller.is_admin:
        return found
    allowed = Q(visibility__in=_OPEN)
    if caller.project_id:  # an unscoped caller does not own the images without owner
        allowed |= Q(owner=caller.project_id)
    return found.filter(allowed)


def visible_to(caller: Caller, image_id: str) -> Image:
    """Return an image that the caller may see. Raises NotFound."""
    image = visible(caller).filter(pk=image_id).first()
    if image is None:
        raise errors.NotFound(f"Image {image_id} could not be found.")
    return image


def create_snapshot_record(
    caller: Caller,
    name: str,
    properties: dict[str, str] | None = None,
    *,
    image_id: str = "",
    disk_format: str = "qcow2",
    min_disk: int = 0,
    min_ram: int = 0,
) -> Image:
    """Create a queued, private image of the caller's project, which a host fills. Idempotent by `image_id`.

    Raises BadRequest for a property name that is a field of images.
    """
    extra = {"image_type": "snapshot"} | (properties or {})
    for key in extra:
        if key in RESERVED:
            raise errors.BadRequest(f"Property {key} is reserved.")
    image, _ = Image.objects.get_or_create(
        pk=image_id or new_id(),
        defaults={
            "name": name, "visibility": Visibility.PRIVATE, "owner": caller.project_id,
            "disk_format": disk_format, "container_format": "bare", "min_disk": min_disk, "min_ram": min_ram,
            "properties": {key: str(value) for key, value in extra.items()},
        },
    )  # fmt: skip
    return image


def backups(owner: str, server_id: str, backup_type: str) -> list[Image]:
    """Return a project's backups of one server and type that have content, newest first."""
    made = {"image_type": "backup", "instance_uuid": server_id, "backup_type": backup_type}
    own = Image.objects.filter(owner=owner, status=Status.ACTIVE)
    return list(own.filter(**{f"properties__{name}": value for name, value in made.items()}).order_by("-created_at"))


def queued_snapshots(before: datetime) -> QuerySet[Image, Any]:
    """Return image id and server id of the snapshots and backups created before then that have no content yet."""
    queued = Image.objects.filter(status=Status.QUEUED, created_at__lt=before)
    made = queued.filter(properties__image_type__in=["snapshot", "backup"])
    marked = made.filter(properties__has_keys=["instance_uuid", "base_image_ref"])
    return marked.values_list("pk", "properties__instance_uuid")


def discard(image_id: str) -> None:
    """Delete an image whose content will not come. An image that is active or deleted stays as it is."""
    unfinished = Image.objects.filter(pk=image_id, status__in=[Status.QUEUED, Status.SAVING, Status.KILLED])
    if unfinished.update(status=Status.DELETED, updated_at=timezone.now()):
        logger.info("image.discarded", image=image_id)


def delete(image: Image) -> None:
    """Delete an image and its file. Raises Forbidden if it is protected, NotFound if it is deleted already.

    The row goes first: a file without a row is swept, but a row without a file promises content that is not there.
    """
    gone = Image.objects.filter(pk=image.pk, protected=False).exclude(status=Status.DELETED)
    if not gone.update(status=Status.DELETED, updated_at=timezone.now()):
        if Image.objects.filter(pk=image.pk, protected=True).exclude(status=Status.DELETED).exists():
            raise errors.Forbidden(f"Image {image.pk} is protected and cannot be deleted.")
        raise errors.NotFound(f"Image {image.pk} could not be found.")
    path(image.pk).unlink(missing_ok=True)
    logger.info("image.deleted", image=image.pk)


def active(image_id: str) -> Image | None:
    """Return an image that has its content, whatever its visibility; None when there is none."""
    return Image.objects.filter(pk=image_id, status=Status.ACTIVE).first()


def remove(image_id: str) -> None:
    """Delete an image in any state, and its file. Idempotent; a protected image stays."""
    image = Image.objects.filter(pk=image_id).first()
    if image is not None:
        with suppress(errors.Forbidden, errors.NotFound):
            delete(image)


def path(image_id: str) -> Path:
    """Return the file of an active image, on the machine of the image store."""
    return file_store.content(image_id)
