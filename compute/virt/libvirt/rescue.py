"""A guest that boots another disk for a while, with its own as the second.

That the rescue disk exists is what makes every definition of the guest one that boots it, so a guest in rescue comes
back in rescue, whatever defines it anew.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

from compute.virt.base import Guest, GuestNotFound, Image, ImageSource
from compute.virt.libvirt import disk
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles, files_of
from compute.virt.libvirt.guest import LibvirtGuest


class Rescue:
    """The verbs of rescue; the driver defines the guest."""

    _id: str
    _guests: Path
    _images: disk.ImageCache

    def rescue(self, guest: Guest, image: Image, fetch: ImageSource) -> None:
        files = files_of(self._guests, guest.uuid)
        other = disk_of(files)
        if other.exists() and self._runs_from(guest.uuid, other):
            return
        if not files.disk.exists() or not files.is_of(self._id):
            raise GuestNotFound(f"guest {guest.uuid} has no disk on this host, or lives on another one that shares it")
        base = self._images.path(image, fetch)
        self.force_off(guest.uuid)
        with translated():
            other.unlink(missing_ok=True)
            disk.create(other, replace(guest, image=image, disk_gb=0), base)
        self._define(guest).start()

    def unrescue(self, guest: Guest) -> None:
        """Killed after the disk is gone it is done: whoever powers the guest on defines it anew."""
        files = files_of(self._guests, guest.uuid)
        if disk_of(files).exists() and files.is_of(self._id):
            self.force_off(guest.uuid)
            leave(files)
            self._define(guest)

    def _runs_from(self, uuid: str, file: Path) -> bool:
        try:
            found = self._guest(uuid)
        except GuestNotFound:
            return False
        with translated():
            return found.is_active() and str(file) in found.domain.XMLDesc()

    @abstractmethod
    def force_off(self, uuid: str) -> None:
        """The driver's own."""

    @abstractmethod
    def _guest(self, uuid: str) -> LibvirtGuest:
        """The driver's own."""

    @abstractmethod
    def _define(self, guest: Guest, mark: str | None = None) -> LibvirtGuest:
        """The driver's own."""


def disk_of(files: GuestFiles) -> Path:
    """The disk a guest in rescue boots; no other guest has one."""
    return files.directory / "rescue.qcow2"


def disk_in_use(files: GuestFiles) -> Path | None:
    """None when the guest is not in rescue."""
    file = disk_of(files)
    return file if file.exists() else None


def leave(files: GuestFiles) -> None:
    """The guest, which is off, boots its own disk from now on."""
    with translated():
        disk_of(files).unlink(missing_ok=True)
