"""The folder of image files: one file per active image, and the files of uploads in progress.

`<id>` is content, `<id>.part` an upload in progress, `<id>.lock` the lock of the process that writes the two. The
kernel releases a lock when its process dies, so a free lock marks the files of a dead upload.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from django.conf import settings

from cloud import errors


def folder() -> Path:
    """Return the folder of the image files; create it when it is missing."""
    path = Path(settings.STATE_DIR) / "images"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def content(image_id: str) -> Path:
    """Return the file of an active image. Raises ValueError for an id that is no canonical UUID."""
    if str(UUID(image_id)) != image_id:
        raise ValueError(image_id)
    return folder() / image_id


def part(image_id: str) -> Path:
    """Return the file that an upload writes."""
    return content(image_id).with_name(f"{image_id}.part")


def ids() -> dict[str, set[str]]:
    """Return every image id with a file here, and its kinds of files ("", ".part", ".lock")."""
    found: dict[str, set[str]] = {}
    for entry in folder().iterdir():
        found.setdefault(entry.stem, set()).add(entry.suffix)
    return found


@contextmanager
def only_writer(image_id: str) -> Iterator[None]:
    """Lock the files of an image against all other writers, in any process. Raises Conflict at once."""
    path = content(image_id).with_name(f"{image_id}.lock")
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(lock)
            # Retry-After tells a host that this is not the 409 of "stored already".
            raise errors.Conflict("Another upload of this image is in progress.", retry_after=5) from exc
        if _still_named(lock, path):
            break
        os.close(lock)  # its last holder removed it between our open and our lock
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def publish(image_id: str) -> None:
    """Move the finished upload into place, durably."""
    os.replace(part(image_id), content(image_id))
    directory = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _still_named(lock: int, path: Path) -> bool:
    try:
        return os.fstat(lock).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
