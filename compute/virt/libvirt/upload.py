"""Upload of a disk file to another host through its libvirt: watched, bounded, and sparse.

A part of a file has the same name as the whole one, so the reader must know when the file is complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree as ET

import libvirt

from compute.virt.base import (
    Command,
    InsufficientResources,
    MigrationAborted,
    OperationTimedOut,
    Progress,
    VirtError,
    Watch,
)
from compute.virt.libvirt import qemu_img, volumes
from compute.virt.libvirt.call_timeout import begin, has_ended
from compute.virt.libvirt.errors import translated

LOOK_EVERY = 0.4  # seconds between two calls of `watch`
STALL_SECONDS = 120.0  # without a byte sent or written
MIB = 1 << 20


@dataclass
class CopyProgress:
    """The progress of a disk copy. Aborts the copy on command, or when it makes no progress."""

    watch: Watch
    total: int
    behind: int = 0  # bytes of the completed parts
    begun: float = field(default_factory=monotonic)
    _last: tuple[int, float] = (-1, 0.0)

    def look(self, done: int) -> None:
        """Report `done` bytes of the present part. Raises MigrationAborted, OperationTimedOut."""
        now = monotonic()
        if done != self._last[0]:
            self._last = done, now
        elif now - self._last[1] > STALL_SECONDS:
            raise OperationTimedOut(f"the disk did not get any further for {STALL_SECONDS:g} s")
        left = max(0, self.total - self.behind - done)
        if self.watch(Progress(disk_total=self.total, disk_left=left, seconds=now - self.begun)) is Command.ABORT:
            raise MigrationAborted("the migration was aborted")


def upload(disk: Path, there: libvirt.virConnect, target: Path, way: CopyProgress, bandwidth: int = 0) -> None:
    """Write a qcow2 file to `target` on another host and compare sizes there. `bandwidth` in MiB/s; 0 is no limit."""
    size = str(disk.stat().st_size), str(qemu_img.virtual_size(disk, "qcow2"))
    with translated(), volumes.folder(there, target.parent) as pool:
        volume = _new_volume(pool, target.name, disk.stat())
        _in_thread(lambda pouring: _send(disk, there, volume, pouring), way, bandwidth)
        pool.refresh()
        arrived = ET.fromstring(pool.storageVolLookupByName(target.name).XMLDesc())  # noqa: S314 - libvirt's own
    found = arrived.findtext("physical"), arrived.findtext("capacity")
    if found != size:
        raise VirtError(f"the disk has (file, disk) {size} bytes here, and {found} at the destination")


def _new_volume(pool: libvirt.virStoragePool, name: str, file: os.stat_result) -> libvirt.virStorageVol:
    """Create an empty volume with the owner of the directory. Raises InsufficientResources.

    It is a new file, because a stream that was cut off may still write to the earlier one.
    """
    folder, needed = ET.fromstring(pool.XMLDesc()), file.st_blocks * 512  # noqa: S314 - libvirt's own
    if int(folder.findtext("available", "0")) < needed:
        raise InsufficientResources(f"there is no room for the disk's {needed} bytes at the destination")
    with suppress(libvirt.libvirtError):
        pool.storageVolLookupByName(name).delete()
    volume = ET.Element("volume", type="file")
    for tag, value in (("name", name), ("capacity", str(file.st_size)), ("allocation", "0")):
        ET.SubElement(volume, tag).text = value
    target = ET.SubElement(volume, "target")
    ET.SubElement(target, "format", type="raw")  # uploaded as plain bytes, so libvirt needs no other format
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = f"0{file.st_mode & 0o777:o}"
    for tag in ("owner", "group"):
        ET.SubElement(permissions, tag).text = folder.findtext(f"target/permissions/{tag}", "-1")
    return pool.createXML(ET.tostring(volume, encoding="unicode"))


@dataclass
class _UploadState:
    """The state shared by the sending thread and the watching one."""

    bandwidth: int
    at: int = 0  # in the file, holes included
    sent: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=monotonic)

    def wait(self) -> None:
        """Sleep while the copy is ahead of its bandwidth. Raises _Stopped."""
        early = self.sent / (self.bandwidth * MIB) - (monotonic() - self.begun) if self.bandwidth else 0.0
        if self.stopped.wait(max(0.0, early)):
            raise _Stopped


class _Stopped(Exception):
    """The watching thread no longer waits for the copy."""


def _in_thread(work: Callable[[_UploadState], None], way: CopyProgress, bandwidth: int) -> None:
    """Run `work` in a thread: a stream that hangs cannot be interrupted, and ends with its connection."""
    pouring = _UploadState(bandwidth)
    upload = begin("upload", lambda: work(pouring))
    try:
        while not has_ended(upload, LOOK_EVERY):
            way.look(pouring.at)
    finally:
        pouring.stopped.set()
        has_ended(upload, LOOK_EVERY)
    upload.result()
    way.look(pouring.at)


def _send(file: Path, connection: libvirt.virConnect, volume: libvirt.virStorageVol, pouring: _UploadState) -> None:
    """Send the file's data; of its holes only their length."""
    stream = connection.newStream()
    volume.upload(stream, 0, file.stat().st_size, libvirt.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
    descriptor = os.open(file, os.O_RDONLY)

    def read(_: object, count: int, __: object) -> bytes:
        pouring.wait()
        chunk = os.read(descriptor, count)
        pouring.at, pouring.sent = os.lseek(descriptor, 0, os.SEEK_CUR), pouring.sent + len(chunk)
        return chunk

    def hole(_: object, __: object) -> list[object]:
        return _next_extent(descriptor)

    def skip(_: object, length: int, __: object) -> int:
        return os.lseek(descriptor, length, os.SEEK_CUR)

    try:
        stream.sparseSendAll(read, hole, skip, None)
        stream.finish()
    finally:
        os.close(descriptor)


def _next_extent(descriptor: int) -> list[object]:
    """Return whether data comes next, and how many bytes of data or hole there are."""
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        data = os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError:  # only a hole until the end
        length = os.lseek(descriptor, 0, os.SEEK_END) - at
        os.lseek(descriptor, at, os.SEEK_SET)
        return [False, length]
    end = os.lseek(descriptor, at, os.SEEK_HOLE) if data == at else data
    os.lseek(descriptor, at, os.SEEK_SET)
    return [data == at, end - at]
