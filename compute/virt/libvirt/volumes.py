"""Files on another host, made through its libvirt, so that no other connection between hosts is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt

from compute.virt.libvirt.errors import translated


def create_disk(there: libvirt.virConnect, file: Path, size: int) -> None:
    """Create an empty standalone qcow2 disk of `size` bytes, in place of any earlier file."""
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
    """Raise NotSupported when a host's libvirt has no storage driver."""
    with translated():
        there.numOfStoragePools()


@contextmanager
def folder(there: libvirt.virConnect, directory: Path) -> Iterator[libvirt.virStoragePool]:
    """Yield a directory of another host as a storage pool; libvirt allows only one pool per directory."""
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
    """Remove the storage pool that another host left on this host's directory when it died."""
    with suppress(libvirt.libvirtError):
        pool = _left_behind(here, directory)
        if pool is not None:
            pool.destroy()


def _left_behind(there: libvirt.virConnect, directory: Path) -> libvirt.virStoragePool | None:
    """Return the storage pool that a dead process left, or None."""
    try:
        return there.storagePoolLookupByName(f"stillwater-{directory.name}")
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_POOL:
            return None
        raise
