"""Files on another host, made through its libvirt: no other way from host to host has to be open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt

from compute.virt.libvirt.errors import translated


def create_disk(there: libvirt.virConnect, file: Path, size: int) -> None:
    """An empty qcow2 disk of `size` bytes that stands alone; what was there before is gone."""
    volume = ET.Element("volume", type="file")
    ET.SubElement(volume, "name").text = file.name
    ET.SubElement(volume, "capacity").text = str(size)
    ET.SubElement(volume, "allocation").text = "0"
    ET.SubElement(ET.SubElement(volume, "target"), "format", type="qcow2")
    with translated(), folder(there, file.parent) as pool:
        with suppress(libvirt.libvirtError):
            pool.storageVolLookupByName(file.name).delete()
        pool.createXML(ET.tostring(volume, encoding="unicode"))


def must_be_known(there: libvirt.virConnect) -> None:
    """Raises NotSupported when a host's libvirt has no storage driver."""
    with translated():
        there.numOfStoragePools()


@contextmanager
def folder(there: libvirt.virConnect, directory: Path) -> Iterator[libvirt.virStoragePool]:
    """A folder of another host as a storage pool, for as long as that takes; libvirt allows one pool a folder."""
    pool = _left_behind(there, directory)
    if pool is None:
        xml = ET.Element("pool", type="dir")
        ET.SubElement(xml, "name").text = f"stillwater-{directory.name}"
        ET.SubElement(ET.SubElement(xml, "target"), "path").text = str(directory)
        pool = there.storagePoolCreateXML(ET.tostring(xml, encoding="unicode"))
    else:
        pool.refresh()
    try:
        yield pool
    finally:
        with suppress(libvirt.libvirtError):
            pool.destroy()


def detach_left_behind(here: libvirt.virConnect, directory: Path) -> None:
    """No folder of this host stays a pool because another host died while it used it."""
    with suppress(libvirt.libvirtError):
        pool = _left_behind(here, directory)
        if pool is not None:
            pool.destroy()


def _left_behind(there: libvirt.virConnect, directory: Path) -> libvirt.virStoragePool | None:
    """By somebody who died here."""
    try:
        return there.storagePoolLookupByName(f"stillwater-{directory.name}")
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_POOL:
            return None
        raise
