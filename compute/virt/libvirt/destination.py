"""The destination of a migration, as the source sees it: only through the destination's libvirt.

A guest has come when the destination's libvirt has a persistent definition of it: a live migration makes it last there,
and the source of a cold migration does so too. So both hosts, even after a crash, find the same answer in one place.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt

from compute.virt.base import GuestNotFound, VirtError
from compute.virt.libvirt.call_timeout import bounded
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles
from compute.virt.libvirt.guest import LibvirtGuest
from compute.virt.libvirt.host import KEEPALIVE_COUNT, KEEPALIVE_SECONDS
from compute.virt.libvirt.xml import moved_xml

OPEN_SECONDS = 20.0
NAMESPACE, KEY = "urn:stillwater:console:1", "stillwater-console"


class Destination:
    """An open connection to the destination. `connection` is public for what this class does not cover."""

    def __init__(self, connection: libvirt.virConnect, to: Mapping[str, str]) -> None:
        self.connection, self.to = connection, to
        self.files = GuestFiles(Path(to["directory"]))

    def shares_disks_with(self, host: str) -> bool:
        """Return whether the guest's directory there is the one it has on `host`: `pre_migrate` found it as owner."""
        return self.to["owner"] == host

    @property
    def requires_tls(self) -> bool:
        """Whether the destination takes memory and disks only encrypted. An older one does not say."""
        return bool(self.to.get("tls"))

    def guest(self, uuid: str) -> LibvirtGuest:
        """Return the guest there. Raises GuestNotFound."""
        with translated():
            return LibvirtGuest(self.connection.lookupByUUIDString(uuid))

    def has(self, uuid: str) -> bool:
        """Return whether the guest has come."""
        try:
            return has_come(self.guest(uuid))
        except GuestNotFound:
            return False

    def xml_of(self, xml: str) -> str:
        """Return a definition of this host with the paths of the destination."""
        return moved_xml(xml, disk=self.files.disk, console=self.files.console, disk_cache=self.to["disk_cache"])

    def define(self, xml: str) -> None:
        """Define the guest there, off: from now on it has come."""
        with translated():
            self.connection.defineXML(xml)

    def tell_console(self, uuid: str, text: str) -> None:
        """Store the console output so far in the guest's definition there, for `finish_migration`."""
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        element, config = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_CONFIG
        with translated():
            self.guest(uuid).domain.setMetadata(
                element, f"<said>{packed}</said>", KEY, NAMESPACE, config
            )

    def remove(self, uuid: str) -> None:
        """Power off and undefine the guest there; its files are left to that host. Unknown is success."""
        with suppress(GuestNotFound):
            self.guest(uuid).remove()


@contextmanager
def opened(to: Mapping[str, str], own_uuid: str) -> Iterator[Destination]:
    """Connect to the destination described by `to`, for the duration of the block.

    Raises HypervisorUnavailable, and VirtError when the address leads to this host or to one that does not expect the
    guest.
    """
    connection = bounded(OPEN_SECONDS, "open", lambda: libvirt.open(to["uri"]))
    try:
        with translated():
            connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
        found = bounded(OPEN_SECONDS, "host uuid", lambda: uuid_of(connection))
        if found == own_uuid or found != to["host_uuid"]:
            raise VirtError(
                f"{to['uri']} does not lead from here to the libvirt daemon of the destination: set "
                "STILLWATER_LIBVIRT_MIGRATION_URI there to what other hosts reach it by"
            )
        yield Destination(connection, to)
    finally:
        with suppress(libvirt.libvirtError):
            connection.close()


def uuid_of(connection: libvirt.virConnect) -> str:
    """Return the host UUID that a libvirt daemon reports."""
    with translated():
        found = ET.fromstring(connection.getCapabilities()).findtext("host/uuid")  # noqa: S314 - libvirt's own
    return found or ""


def has_come(guest: LibvirtGuest) -> bool:
    """Return whether the guest is complete, and not still arriving by live migration."""
    return guest.is_persistent() and not guest.is_coming_in()


def said_before(guest: LibvirtGuest) -> str | None:
    """Return what `tell_console` stored in the definition, or None."""
    element, config = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_CONFIG
    try:
        found = guest.domain.metadata(element, NAMESPACE, config)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return None
        with translated():
            raise
    packed = found.partition(">")[2].rpartition("<")[0]
    return zlib.decompress(base64.b64decode(packed)).decode()
