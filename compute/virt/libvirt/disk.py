"""Guest disks: the host's image cache and the qcow2 overlays on it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tenacity

from compute.virt import image_check
from compute.virt.base import (
    Guest,
    Image,
    ImageSource,
    ImageUnusable,
    OperationTimedOut,
    VirtError,
)
from compute.virt.libvirt import qemu_img
from compute.virt.libvirt.errors import translated

FETCH_SECONDS = 1800.0
LOCK_POLL_SECONDS = 0.05
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
GIB = 1 << 30


class ImageCache:
    """The images on this host: each is fetched once, checked, and never changed afterwards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, image: Image, fetch: ImageSource) -> Path:
        """Return the image's file; parallel callers wait for the one that fetches it. Raises ImageUnusable."""
        if not SAFE_NAME.fullmatch(image.id):
            raise ImageUnusable(f"image id {image.id!r} cannot be a file name")
        cached = self._directory / f"{image.id}.{image.disk_format}"
        if cached.exists():
            return cached
        with translated():
            self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(self._directory / f"{image.id}.lock"):
            if not cached.exists():
                self._fetch(image, fetch, cached)
        return cached

    def _fetch(self, image: Image, fetch: ImageSource, cached: Path) -> None:
        partial = cached.with_name(f"{image.id}.part")
        partial.unlink(missing_ok=True)  # left by a worker that died here
        try:
            with translated():
                fetch(partial)
                image_check.check(partial, image)
                qemu_img.virtual_size(partial, image.disk_format)
                partial.chmod(0o444)
                partial.replace(cached)
        finally:
            partial.unlink(missing_ok=True)


def provide(target: Path, guest: Guest, images: ImageCache, fetch: ImageSource) -> None:
    """Create the guest's disk from its image, unless it exists."""
    if target.exists():
        return
    if guest.image.sole:
        _take_over(target, guest, fetch)
    else:
        create(target, guest, images.path(guest.image, fetch))


def create(target: Path, guest: Guest, base: Path) -> None:
    """Create the guest's disk as an overlay on `base`, unless it exists. An incomplete one never has the final name."""
    if target.exists():
        return
    partial = target.with_suffix(".part")
    partial.unlink(missing_ok=True)
    size = qemu_img.virtual_size(base, guest.image.disk_format)
    wanted = guest.disk_gb * GIB
    if wanted and wanted < size:
        raise ImageUnusable(f"image {guest.image.id} needs {size} bytes, the disk has {wanted}")
    qemu_img.create_overlay(partial, base, guest.image.disk_format, wanted or size)
    partial.replace(target)


def _take_over(target: Path, guest: Guest, fetch: ImageSource) -> None:
    """Make the image itself the disk: it is standalone, so it migrates like any other disk."""
    image, partial = guest.image, target.with_suffix(".part")
    if image.disk_format != "qcow2":
        raise ImageUnusable(f"image {image.id} is {image.disk_format}; only a qcow2 can be a disk as it is")
    partial.unlink(missing_ok=True)
    try:
        fetch(partial)
        image_check.check(partial, image)
        qemu_img.virtual_size(partial, image.disk_format)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def cache_mode(directory: Path) -> str:
    """Return "none" where the file system supports direct I/O, else "writeback" (which keeps flushes)."""
    probe = directory / f".direct-io-{os.getpid()}-{threading.get_ident()}"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise VirtError(f"{directory} cannot hold disks: {error}") from error
        return "writeback"
    finally:
        probe.unlink(missing_ok=True)
    return "none"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, against all threads and processes. The kernel releases it when the process dies."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BlockingIOError), wait=tenacity.wait_fixed(LOCK_POLL_SECONDS),
        stop=tenacity.stop_after_delay(FETCH_SECONDS),
    )  # fmt: skip
    with path.open("w") as file:
        try:
            retrying(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except tenacity.RetryError:
            raise OperationTimedOut(f"another fetch holds {path.name}") from None
        yield
