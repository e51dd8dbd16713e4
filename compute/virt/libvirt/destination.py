"""The host a guest goes to, as the host it leaves sees it: through the other's libvirt, and nothing else.

A guest has come when the destination's libvirt has a persistent definition of it: the last thing a live migration
makes there, and the last thing the source of a cold one does. So both hosts, and both after a crash, read the same
answer in the same place.
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
    """An open connection to it. `connection` is for what is not here."""

    def __init__(self, connection: libvirt.virConnect, to: Mapping[str, str]) -> None:
        self.connection, self.to = connection, to
        self.files = GuestFiles(Path(to["directory"]))

    def shares_disks_with(self, host: str) -> bool:
        """Whether the guest's directory there is the one it has here: `pre_migrate` found this host written in it."""
        return self.to["owner"] == host

    def guest(self, uuid: str) -> LibvirtGuest:
        """Raises GuestNotFound."""
        with translated():
            return LibvirtGuest(self.connection.lookupByUUIDString(uuid))

    def has(self, uuid: str) -> bool:
        """Whether the guest has come."""
        try:
            return has_come(self.guest(uuid))
        except GuestNotFound:
            return False

    def xml_of(self, xml: str) -> str:
        """A definition from here, as it has to be there."""
        return moved_xml(xml, disk=self.files.disk, console=self.files.console, disk_cache=self.to["disk_cache"])

    def define(self, xml: str) -> None:
        """The guest has come, turned off."""
        with translated():
            self.connection.defineXML(xml)

    def tell_console(self, uuid: str, text: str) -> None:
        """What the guest said so far, in its definition there, for `finish_migration` to take out."""
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        element, config = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_CONFIG
        with translated():
            self.guest(uuid).domain.setMetadata(
                element, f"<said>{packed}</said>", KEY, NAMESPACE, config
            )

    def remove(self, uuid: str) -> None:
        """The guest is not there any more; its files are the other host's business."""
        with suppress(GuestNotFound):
            self.guest(uuid).remove()


@contextmanager
def opened(to: Mapping[str, str], own_uuid: str) -> Iterator[Destination]:
    """Raises HypervisorUnavailable, and VirtError when the address leads to a host that does not expect it."""
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
    """Which host a daemon says it is."""
    with translated():
        found = ET.fromstring(connection.getCapabilities()).findtext("host/uuid")  # noqa: S314 - libvirt's own
    return found or ""


def has_come(guest: LibvirtGuest) -> bool:
    """Whether this is all of a guest, and not one that is just coming in."""
    return guest.is_persistent() and not guest.is_coming_in()


def said_before(guest: LibvirtGuest) -> str | None:
    """What `tell_console` put into the definition of a guest that came; None when there is nothing."""
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
