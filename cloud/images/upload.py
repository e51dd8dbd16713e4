"""The upload of content: write to a separate file, check, move into place, then make the image active."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.utils import timezone

from cloud import env, errors, log
from cloud.images import file_store, format_check
from cloud.images.models import Image, Status

logger = log.get(__name__)
CHUNK = 1 << 20
_UNFINISHED = (Status.QUEUED, Status.SAVING, Status.KILLED)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """The size and the hashes of what was received."""

    size: int
    md5: str
    sha512: str


def receive(image_id: str, read: Callable[[int], bytes], expected: int | None) -> None:
    """Store an image's content. Of concurrent uploads one wins; the others raise Conflict.

    Raises BadRequest for content that is refused or incomplete, TooLarge above the limit. The image is then queued
    again and has no file.
    """
    too_large(expected or 0)
    sweep()
    with file_store.only_writer(image_id):
        image = _begin(image_id)
        try:
            written = _write(file_store.part(image_id), read, expected)
            virtual_size = format_check.inspect(file_store.part(image_id), image.disk_format)
            file_store.publish(image_id)
            _finish(image, written, virtual_size)
        except BaseException:
            _undo(image_id)
            raise
    logger.info("image.active", image=image_id, size=written.size)


def too_large(size: int) -> None:
    """Raise TooLarge above STILLWATER_IMAGE_SIZE_LIMIT."""
    limit = env.get("STILLWATER_IMAGE_SIZE_LIMIT")
    if size > limit:
        raise errors.TooLarge(f"Image is too large: at most {limit} bytes are taken.")


def sweep() -> None:
    """Remove what dead uploads and interrupted deletes left. Cheap, and safe at any time."""
    found = file_store.ids()
    active = set(Image.objects.filter(status=Status.ACTIVE, pk__in=found).values_list("pk", flat=True))
    saving = set(Image.objects.filter(status=Status.SAVING).values_list("pk", flat=True))
    left = {image_id for image_id, kinds in found.items() if kinds != {""} or image_id not in active}
    for image_id in left | saving:
        try:
            with file_store.only_writer(image_id):
                _undo(image_id)
        except errors.Conflict:
            continue  # an upload in progress
        except ValueError:
            logger.warning("image.orphaned_file", file=image_id)


def _begin(image_id: str) -> Image:
    image = Image.objects.filter(pk=image_id).first()
    if image is None or image.status == Status.DELETED:
        raise errors.NotFound(f"Image {image_id} could not be found.")
    if image.status == Status.ACTIVE:
        raise errors.Conflict(f"Image {image_id} has content already: it is active.")
    if not (image.disk_format and image.container_format):
        raise errors.BadRequest("disk_format and container_format must be set prior to saving data.")
    # We hold the lock, so an image that is `saving` was left by a dead upload: this one replaces it.
    begun = Image.objects.filter(pk=image_id, status__in=_UNFINISHED, disk_format=image.disk_format)
    if not begun.update(status=Status.SAVING):
        raise errors.Conflict(f"Image {image_id} was changed meanwhile.")
    return image


def _write(path: Path, read: Callable[[int], bytes], expected: int | None) -> UploadedFile:
    md5, sha512 = hashlib.md5(usedforsecurity=False), hashlib.sha512()
    size = 0
    try:
        with path.open("wb") as file:
            while chunk := _next(read):
                size += len(chunk)
                too_large(size)
                md5.update(chunk)
                sha512.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.Unavailable("The image store is full.") from exc
        raise
    if expected is not None and size != expected:
        raise errors.BadRequest(f"The upload broke off: {size} of {expected} bytes came.")
    return UploadedFile(size, md5.hexdigest(), sha512.hexdigest())


def _next(read: Callable[[int], bytes]) -> bytes:
    try:
        return read(CHUNK)
    except OSError as exc:  # the client is gone, or its chunks are malformed
        raise errors.BadRequest("The upload broke off.") from exc


def _finish(image: Image, written: UploadedFile, virtual_size: int) -> None:
    moved = Image.objects.filter(pk=image.pk, status=Status.SAVING).update(
        status=Status.ACTIVE,
        size=written.size,
        virtual_size=virtual_size,
        checksum=written.md5,
        os_hash_algo="sha512",
        os_hash_value=written.sha512,
        updated_at=timezone.now(),
    )
    if not moved:
        raise errors.NotFound(f"Image {image.pk} was deleted while its content came in.")


def _undo(image_id: str) -> None:
    """Remove the files, then queue the image: a queued image promises that it has none. Needs the writer's lock."""
    file_store.part(image_id).unlink(missing_ok=True)
    if not Image.objects.filter(pk=image_id, status=Status.ACTIVE).exists():
        file_store.content(image_id).unlink(missing_ok=True)
    Image.objects.filter(pk=image_id, status=Status.SAVING).update(status=Status.QUEUED)
