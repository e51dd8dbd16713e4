"""Rescue: a guest boots another disk for a while, with its own as the second.

While the rescue disk exists, every new definition of the guest boots it. So a guest in rescue stays in rescue, whatever
verb defines it anew.
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
    """The rescue verbs; the driver defines the guest."""

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
        """Killed after the disk is deleted, it is complete: the next power-on defines the guest anew."""
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
        """Implemented by the driver."""

    @abstractmethod
    def _guest(self, uuid: str) -> LibvirtGuest:
        """Implemented by the driver."""

    @abstractmethod
    def _define(self, guest: Guest, mark: str | None = None) -> LibvirtGuest:
        """Implemented by the driver."""


def disk_of(files: GuestFiles) -> Path:
    """Return the path of the rescue disk; it exists only while the guest is in rescue."""
    return files.directory / "rescue.qcow2"


def disk_in_use(files: GuestFiles) -> Path | None:
    """Return the rescue disk, or None when the guest is not in rescue."""
    file = disk_of(files)
    return file if file.exists() else None


def leave(files: GuestFiles) -> None:
    """Delete the rescue disk of a guest that is off: its next definition boots its own disk."""
    with translated():
        disk_of(files).unlink(missing_ok=True)
