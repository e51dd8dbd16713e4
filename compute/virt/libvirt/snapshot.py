"""Snapshots: a guest's disk as it is now, in one file, without a change of the disk's chain.

QEMU copies a running guest's disk itself (a push backup of one point in time). There is no temporary overlay to commit
back: after a crash in the middle the guest's own disk is unchanged, and the next attempt removes the partial copy.
"""

from __future__ import annotations

from pathlib import Path

import libvirt

from cloud.polling import wait_until
from compute.virt.base import GuestInvalidState, Image, OperationTimedOut, VirtError
from compute.virt.libvirt import qemu_img
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.guest import LibvirtGuest
from compute.virt.libvirt.xml import backup_xml

BACKUP_SECONDS = 3600.0
POLL_SECONDS = 0.05


def take(guest: LibvirtGuest, disk: Path, target: Path) -> Image:
    """Write `target`, standalone, complete or not at all; return its sizes."""
    copy, partial = disk.with_name("snapshot.copy"), target.with_name(f"{target.name}.part")
    with translated():
        _clean_up(guest, copy)
        try:
            if guest.is_active():
                _backup(guest, copy)
                qemu_img.convert(copy, partial)
            else:
                qemu_img.convert(disk, partial)
            size = qemu_img.virtual_size(partial, "qcow2")
            partial.replace(target)
        finally:
            _clean_up(guest, copy)
            partial.unlink(missing_ok=True)
        return Image(id="", disk_format="qcow2", size=target.stat().st_size, virtual_size=size)


def _clean_up(guest: LibvirtGuest, copy: Path) -> None:
    """End a backup that a dead worker left running, and remove its copy."""
    if copy.exists():
        backup = libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP
        if guest.is_active() and guest.job().get("operation") == backup:
            guest.abort_job()
        copy.unlink(missing_ok=True)


def _backup(guest: LibvirtGuest, copy: Path) -> None:
    guest.start_backup(backup_xml(copy))
    if not wait_until(lambda: not _is_running(guest), BACKUP_SECONDS, POLL_SECONDS):
        guest.abort_job()
        raise OperationTimedOut(f"the disk was not copied within {BACKUP_SECONDS:g} s")
    outcome = guest.finished_job()
    if outcome.get("type") != libvirt.VIR_DOMAIN_JOB_COMPLETED:
        raise VirtError(f"QEMU could not copy the disk: {outcome.get('errmsg', 'no reason given')}")


def _is_running(guest: LibvirtGuest) -> bool:
    try:
        return bool(guest.job())
    except GuestInvalidState:
        raise GuestInvalidState("the guest went off while its disk was copied") from None
