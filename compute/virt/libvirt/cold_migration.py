"""Cold migration: copies the disk of a guest that is off to another host, through that host's libvirt.

The other host's paths mean nothing here. The disk travels whole and standalone, under a temporary name; it gets its own
name when the guest settles. A process that dies meanwhile leaves part of a file, and the next attempt begins again. The
disk here is only read, and stays for a revert.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from compute.virt.base import Guest, GuestInvalidState, GuestNotFound, Watch
from compute.virt.libvirt import qemu_img
from compute.virt.libvirt.destination import Destination
from compute.virt.libvirt.disk import GIB
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles
from compute.virt.libvirt.upload import LOOK_EVERY, CopyProgress, upload

LEAVING, ARRIVING = "disk.leaving", "disk.arriving"


def send(files: GuestFiles, there: Destination, watch: Watch, bandwidth: int = 0) -> None:
    """Copy the disk to the destination, under the name ARRIVING. Run again, it sends again.

    `bandwidth` in MiB/s; 0 is no limit. Raises MigrationAborted, and GuestInvalidState when the disk was written
    meanwhile.
    """
    leaving, arriving = files.directory / LEAVING, there.files.directory / ARRIVING
    leaving.unlink(missing_ok=True)  # left by a worker that died here
    if not files.disk.exists():
        raise GuestNotFound(f"{files.directory.name} has no disk on this host")
    before = _stamp(files.disk)
    try:
        if qemu_img.stands_alone(files.disk):
            upload(files.disk, there.connection, arriving, CopyProgress(watch, files.disk.stat().st_size), bandwidth)
        else:
            size = qemu_img.measure(files.disk)
            way = CopyProgress(watch, 2 * size)
            _flatten(files.disk, leaving, way)
            way.behind, way.total = size, size + leaving.stat().st_size
            upload(leaving, there.connection, arriving, way, bandwidth)
    finally:
        leaving.unlink(missing_ok=True)
    if _stamp(files.disk) != before:
        raise GuestInvalidState("the disk was changed while it was sent")


def leave_copy(files: GuestFiles, host: str, watch: Watch) -> None:
    """Do the same where the destination shares the directory: leave it a copy, keep the disk under another name."""
    leaving, kept = files.directory / LEAVING, _kept(files, host)
    if files.disk.exists():
        leaving.unlink(missing_ok=True)
        _flatten(files.disk, leaving, CopyProgress(watch, qemu_img.measure(files.disk)))
        with translated():
            files.disk.replace(kept)
    if not kept.exists():
        raise GuestNotFound(f"{files.directory.name} has no disk on this host")
    with suppress(FileNotFoundError):  # an earlier run has moved it
        leaving.replace(files.directory / ARRIVING)


def finish(files: GuestFiles, guest: Guest) -> None:
    """Grow a disk that arrived to the guest's size and give it its own name. Done already is success."""
    arriving = files.directory / ARRIVING
    if not arriving.exists():
        return
    size, wanted = qemu_img.virtual_size(arriving, "qcow2"), guest.disk_gb * GIB
    if wanted > size:
        qemu_img.grow(arriving, wanted)
    with translated():
        _sync(arriving)
        arriving.replace(files.disk)
        _sync(files.directory)


def revert(files: GuestFiles, host: str) -> None:
    """Restore the disk as it was before it was sent."""
    kept = _kept(files, host)
    with translated():
        for name in (LEAVING, ARRIVING):
            (files.directory / name).unlink(missing_ok=True)
        if kept.exists():
            files.own(host)
            kept.replace(files.disk)


def cleanup_source(files: GuestFiles, host: str) -> None:
    """Remove the disk kept for a revert in a shared directory."""
    with translated():
        _kept(files, host).unlink(missing_ok=True)


def _kept(files: GuestFiles, host: str) -> Path:
    """Return a path beside the guest's directory, which the next host may remove."""
    return files.directory.with_name(f"{files.directory.name}.{host}.qcow2")


def _flatten(disk: Path, target: Path, way: CopyProgress) -> None:
    """Write the disk with everything it is based on into one file. qemu-img refuses a disk that a QEMU has open."""
    way.look(0)
    with qemu_img.converting(disk, target) as ended:
        while not ended(LOOK_EVERY):
            with suppress(FileNotFoundError):
                way.look(target.stat().st_blocks * 512)


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def _sync(path: Path) -> None:
    """Flush the file or directory to disk: it will soon be the only copy."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
