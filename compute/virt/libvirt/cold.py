"""The disk of a guest that is off, from one host to another, through the other's libvirt: its paths mean nothing here.

It goes there whole, standing alone, under a name it has only on its way; it gets its own when the guest settles.
Whoever dies meanwhile leaves half a file, and the next attempt begins anew. The disk here is only read, and stays for
a revert.
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
    Guest,
    GuestInvalidState,
    GuestNotFound,
    InsufficientResources,
    MigrationAborted,
    OperationTimedOut,
    Progress,
    VirtError,
    Watch,
)
from compute.virt.libvirt import qemu_img, volumes
from compute.virt.libvirt.destination import Destination
from compute.virt.libvirt.disk import GIB
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles

LOOK_EVERY = 0.4  # seconds between two looks at what becomes of it
STALL_SECONDS = 120.0  # without a byte sent or written
LEAVING, ARRIVING = "disk.leaving", "disk.arriving"


@dataclass
class Way:
    """How far the disk is, for whoever watches; ends it when it is to end, or goes no further."""

    watch: Watch
    total: int
    behind: int = 0  # bytes of the parts that are done
    begun: float = field(default_factory=monotonic)
    _last: tuple[int, float] = (-1, 0.0)

    def look(self, done: int) -> None:
        """`done` bytes of the present part. Raises MigrationAborted, OperationTimedOut."""
        now = monotonic()
        if done != self._last[0]:
            self._last = done, now
        elif now - self._last[1] > STALL_SECONDS:
            raise OperationTimedOut(f"the disk did not get any further for {STALL_SECONDS:g} s")
        left = max(0, self.total - self.behind - done)
        if self.watch(Progress(disk_total=self.total, disk_left=left, seconds=now - self.begun)) is Command.ABORT:
            raise MigrationAborted("the migration was aborted")


def send(files: GuestFiles, there: Destination, watch: Watch) -> None:
    """The disk is at the destination, on its way in. Again sends it again.

    Raises MigrationAborted, and GuestInvalidState when somebody uses the disk meanwhile.
    """
    leaving = files.directory / LEAVING
    leaving.unlink(missing_ok=True)  # of a worker that died here
    if not files.disk.exists():
        raise GuestNotFound(f"{files.directory.name} has no disk on this host")
    before = _stamp(files.disk)
    try:
        if qemu_img.stands_alone(files.disk):
            _upload(files.disk, there, Way(watch, files.disk.stat().st_size))
        else:
            size = qemu_img.measure(files.disk)
            way = Way(watch, 2 * size)
            _flatten(files.disk, leaving, way)
            way.behind, way.total = size, size + leaving.stat().st_size
            _upload(leaving, there, way)
    finally:
        leaving.unlink(missing_ok=True)
    if _stamp(files.disk) != before:
        raise GuestInvalidState("somebody wrote to the disk while it was sent")


def leave_copy(files: GuestFiles, host: str, watch: Watch) -> None:
    """The same for a destination that shares the folder: it gets a copy, the disk is kept under another name."""
    leaving, kept = files.directory / LEAVING, _kept(files, host)
    if files.disk.exists():
        leaving.unlink(missing_ok=True)
        _flatten(files.disk, leaving, Way(watch, qemu_img.measure(files.disk)))
        with translated():
            files.disk.replace(kept)
    if not kept.exists():
        raise GuestNotFound(f"{files.directory.name} has no disk on this host")
    with suppress(FileNotFoundError):  # it is there already
        leaving.replace(files.directory / ARRIVING)


def settle(files: GuestFiles, guest: Guest) -> None:
    """A disk that came gets its own name, and the size the guest has now. One that did so already is left alone."""
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


def take_back(files: GuestFiles, host: str) -> None:
    """The disk is what it was before it was sent."""
    kept = _kept(files, host)
    with translated():
        for name in (LEAVING, ARRIVING):
            (files.directory / name).unlink(missing_ok=True)
        if kept.exists():
            files.own(host)
            kept.replace(files.disk)


def forget(files: GuestFiles, host: str) -> None:
    """Nothing is left of what was kept for a revert in a folder that hosts have in common."""
    with translated():
        _kept(files, host).unlink(missing_ok=True)


def _kept(files: GuestFiles, host: str) -> Path:
    """Beside the guest's folder, which the next host may remove."""
    return files.directory.with_name(f"{files.directory.name}.{host}.qcow2")


def _flatten(disk: Path, target: Path, way: Way) -> None:
    """One file with everything the disk is based on. A QEMU that has the disk keeps qemu-img from reading it."""
    way.look(0)
    with qemu_img.converting(disk, target) as ended:
        while not ended(LOOK_EVERY):
            with suppress(FileNotFoundError):
                way.look(target.stat().st_blocks * 512)


def _upload(file: Path, there: Destination, way: Way) -> None:
    """Into a new volume of the destination's folder of the guest; checked there, as libvirt sees it."""
    size = file.stat().st_size
    with volumes.folder(there.connection, there.files.directory) as pool:
        with translated():
            volume = _new_volume(pool, file.stat())
        _in_thread(lambda on: _pour(file, there.connection, volume, on), way)
        with translated():
            pool.refresh()
            arrived = ET.fromstring(pool.storageVolLookupByName(ARRIVING).XMLDesc())  # noqa: S314 - libvirt's own
    there_now = (arrived.findtext("physical"), arrived.findtext("capacity"))
    if there_now != (str(size), str(qemu_img.virtual_size(file, "qcow2"))):
        raise VirtError(f"of the disk's {size} bytes {there_now[0]} arrived, for {there_now[1]} in use")


def _new_volume(pool: libvirt.virStoragePool, file: os.stat_result) -> libvirt.virStorageVol:
    """Empty, new, and whose the folder is: a stream that was cut off can only write to the one before."""
    folder, needed = ET.fromstring(pool.XMLDesc()), file.st_blocks * 512  # noqa: S314 - libvirt's own
    if int(folder.findtext("available", "0")) < needed:
        raise InsufficientResources(f"there is no room for the disk's {needed} bytes at the destination")
    with suppress(libvirt.libvirtError):
        pool.storageVolLookupByName(ARRIVING).delete()
    volume = ET.Element("volume", type="file")
    for name, value in (("name", ARRIVING), ("capacity", str(file.st_size)), ("allocation", "0")):
        ET.SubElement(volume, name).text = value
    target = ET.SubElement(volume, "target")
    ET.SubElement(target, "format", type="raw")  # a file of bytes, as far as libvirt needs to know
    permissions = ET.SubElement(target, "permissions")
    ET.SubElement(permissions, "mode").text = f"0{file.st_mode & 0o777:o}"
    for name in ("owner", "group"):
        ET.SubElement(permissions, name).text = folder.findtext(f"target/permissions/{name}", "-1")
    return pool.createXML(ET.tostring(volume, encoding="unicode"))


@dataclass
class _Pouring:
    """What the thread that sends and the one that watches tell each other."""

    sent: int = 0
    stopped: bool = False


class _Stopped(Exception):
    """Nobody waits for it any more."""


def _in_thread(work: Callable[[_Pouring], None], way: Way) -> None:
    """A stream that hangs cannot be interrupted: it is left to its thread, and ends with the connection."""
    pouring, errors, done = _Pouring(), list[BaseException](), threading.Event()

    def run() -> None:
        try:
            with translated():
                work(pouring)
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="libvirt-upload", daemon=True).start()
    try:
        while not done.wait(LOOK_EVERY):
            way.look(pouring.sent)
    finally:
        pouring.stopped = True
        done.wait(LOOK_EVERY)
    if errors:
        raise errors[0]
    way.look(pouring.sent)


def _pour(file: Path, connection: libvirt.virConnect, volume: libvirt.virStorageVol, pouring: _Pouring) -> None:
    """The file's bytes; of its holes only how long they are."""
    stream = connection.newStream()
    volume.upload(stream, 0, file.stat().st_size, libvirt.VIR_STORAGE_VOL_UPLOAD_SPARSE_STREAM)
    descriptor = os.open(file, os.O_RDONLY)

    def read(_: object, count: int, __: object) -> bytes:
        if pouring.stopped:
            raise _Stopped
        pouring.sent = os.lseek(descriptor, 0, os.SEEK_CUR)
        return os.read(descriptor, count)

    def hole(_: object, __: object) -> list[object]:
        return _ahead(descriptor)

    def skip(_: object, length: int, __: object) -> int:
        return os.lseek(descriptor, length, os.SEEK_CUR)

    try:
        stream.sparseSendAll(read, hole, skip, None)
        stream.finish()
        pouring.sent = os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def _ahead(descriptor: int) -> list[object]:
    """Whether data comes next, and how much of that, or of nothing."""
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        data = os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError:  # nothing but a hole until the end
        length = os.lseek(descriptor, 0, os.SEEK_END) - at
        os.lseek(descriptor, at, os.SEEK_SET)
        return [False, length]
    end = os.lseek(descriptor, at, os.SEEK_HOLE) if data == at else data
    os.lseek(descriptor, at, os.SEEK_SET)
    return [data == at, end - at]


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def _sync(path: Path) -> None:
    """On the disk, not only in memory: soon the only copy."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
