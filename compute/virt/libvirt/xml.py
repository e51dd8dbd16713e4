"""The libvirt domain XML of a guest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from compute.virt.base import Guest, ShutdownPreference, VirtError
from compute.virt.libvirt import agent

NAMESPACE = "urn:stillwater:guest:1"
TIMER_NAMESPACE, TIMER_PREFIX = "urn:stillwater:shutdown:1", "stillwater-shutdown"
QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
BOOT_NAMESPACE, BOOT_PREFIX = "urn:stillwater:boot:1", "stillwater-boot"
TB_CACHE_MIB = "16"  # QEMU's default reserves much more; 16 saves 40 MB per guest
NETDEV, CARD_SLOT = "stillwater0", "0x1e"  # libvirt does not know this card; it assigns slots from the low end
MAC = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5}")
CPUINFO, KVM = Path("/proc/cpuinfo"), Path("/dev/kvm")

ET.register_namespace("stillwater", NAMESPACE)
ET.register_namespace("qemu", QEMU_NAMESPACE)


def choose_virt_type(setting: str = "auto") -> str:
    """Return "kvm" or "qemu". An accessible /dev/kvm is not enough: nested without vmx/svm, guests hang."""
    if setting != "auto":
        return setting
    words = CPUINFO.read_text().split() if CPUINFO.exists() else []
    hardware = "vmx" in words or "svm" in words
    return "kvm" if hardware and os.access(KVM, os.R_OK | os.W_OK) else "qemu"


def domain_xml(
    guest: Guest,
    *,
    disk: Path,
    console: Path,
    virt_type: str,
    disk_cache: str = "none",
    reboot_mark: str = "",
    rescue: Path | None = None,
    open_network: bool = False,
) -> str:
    """Return the whole definition. Text from users is escaped by the XML library, or refused with VirtError.

    With a `rescue` disk the guest boots that disk. With `open_network` a guest with a network card reaches whatever its
    host reaches, including the host itself.
    """
    domain = ET.Element("domain", type=virt_type)
    _text(domain, "name", guest.name)
    _text(domain, "uuid", guest.uuid)
    _text(domain, "title", _printable(guest.display_name))
    _metadata(domain, guest, reboot_mark)
    _text(domain, "memory", str(guest.memory_mb), unit="MiB")
    _text(domain, "vcpu", str(guest.vcpus))
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="pc")
    ET.SubElement(system, "boot", dev="hd")
    _features(domain, virt_type)
    for name, action in (("poweroff", "destroy"), ("reboot", "restart"), ("crash", "destroy")):
        _text(domain, f"on_{name}", action)
    devices = ET.SubElement(domain, "devices")
    for letter, file in zip("ab", [rescue, disk] if rescue else [disk], strict=False):
        _disk(devices, file, disk_cache, f"vd{letter}")
    _serial(devices, console)
    if agent.is_wanted(guest.image.properties):
        channel = ET.SubElement(devices, "channel", type="unix")
        ET.SubElement(channel, "target", type="virtio", name=agent.CHANNEL)
    _network(domain, devices, guest, is_open=open_network)
    ET.SubElement(devices, "controller", type="usb", model="none")
    ET.SubElement(devices, "memballoon", model="none")
    return ET.tostring(domain, encoding="unicode")


def moved_xml(xml: str, *, disk: Path, console: Path, disk_cache: str) -> str:
    """Return libvirt's definition of a guest with the paths it has on another host.

    The backing chain is left out, so that libvirt detects it there: it is another file, or none.
    """
    domain = ET.fromstring(xml)  # noqa: S314 - libvirt's own
    for element in domain.iterfind("devices/disk[@device='disk']"):
        for chain in element.findall("backingStore"):
            element.remove(chain)
        for source in element.iterfind("source"):
            source.set("file", str(disk))
        for disk_driver in element.iterfind("driver"):
            disk_driver.set("cache", disk_cache)
    for tag in ("serial", "console"):
        for log in domain.iterfind(f"devices/{tag}/log"):
            log.set("file", str(console))
    return ET.tostring(domain, encoding="unicode")


def reboot_mark(metadata: str) -> str:
    """Return the mark of the last reboot begun, from our element of the domain's metadata, or "".

    libvirt returns the element without its namespace.
    """
    return ET.fromstring(metadata).findtext("{*}reboot") or ""  # noqa: S314 - ours, from libvirt


def shutdown_preference(metadata: str) -> ShutdownPreference:
    """Return the shutdown preference from our metadata element; elements of older versions have fewer fields."""
    element = ET.fromstring(metadata)  # noqa: S314 - ours, from libvirt
    said = {name: element.findtext(f"{{*}}{name}") or "" for name in ("name", "shutdown_timeout", "shutdown_priority")}
    return ShutdownPreference(said["name"], _whole(said["shutdown_timeout"]), _whole(said["shutdown_priority"]) or 0)


def note_xml(tag: str, text: str) -> str:
    """Return a metadata element that holds a text."""
    element = ET.Element(tag)
    element.text = text
    return ET.tostring(element, encoding="unicode")


def note_text(metadata: str) -> str:
    """Return the text of a `note_xml` element; "" for ""."""
    return ET.fromstring(metadata).text or "" if metadata else ""  # noqa: S314 - ours, from libvirt


def backup_xml(target: Path) -> str:
    """Return the XML of a full copy of the running guest's disk, written by QEMU."""
    backup = ET.Element("domainbackup", mode="push")
    disk = ET.SubElement(ET.SubElement(backup, "disks"), "disk", name="vda", type="file")
    ET.SubElement(disk, "driver", type="qcow2")
    ET.SubElement(disk, "target", file=str(target))
    return ET.tostring(backup, encoding="unicode")


def _features(domain: ET.Element, virt_type: str) -> None:
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    if virt_type == "kvm":
        ET.SubElement(domain, "cpu", mode="host-model")
        return
    _text(ET.SubElement(features, "tcg"), "tb-cache", TB_CACHE_MIB, unit="MiB")


def _metadata(domain: ET.Element, guest: Guest, reboot_mark: str) -> None:
    """Record whose guest this is, for operators with only virsh, and its last reboot and shutdown preference."""
    metadata = ET.SubElement(ET.SubElement(domain, "metadata"), f"{{{NAMESPACE}}}guest")
    for name, value in (
        ("project", guest.project_id),
        ("name", guest.display_name),
        ("image", guest.image.id),
        ("reboot", reboot_mark),
        ("shutdown_timeout", "" if guest.shutdown_timeout is None else str(guest.shutdown_timeout)),
        ("shutdown_priority", str(guest.shutdown_priority)),
    ):
        _text(metadata, f"{{{NAMESPACE}}}{name}", _printable(value))


def _disk(devices: ET.Element, disk: Path, cache: str, name: str) -> None:
    element = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(element, "driver", name="qemu", type="qcow2", cache=cache, discard="unmap")
    ET.SubElement(element, "source", file=str(disk))
    ET.SubElement(element, "target", dev=name, bus="virtio")


def _serial(devices: ET.Element, console: Path) -> None:
    serial = ET.SubElement(devices, "serial", type="pty")
    ET.SubElement(serial, "log", file=str(console), append="on")
    ET.SubElement(serial, "target", port="0")


def _network(domain: ET.Element, devices: ET.Element, guest: Guest, *, is_open: bool) -> None:
    """Add QEMU's user network. Unless it `is_open` it answers DHCP and passes nothing to the host or beyond.

    Open, QEMU itself makes the connections, so 10.0.2.2, 127.0.0.1 and every address of the host reach the host. passt
    of Debian 12 with --no-map-gw does the same for a guest that routes 127.0.0.1 to its card (tried). libvirt 9.0's XML
    has no `restrict`, and libvirt's own -netdev is JSON, which QEMU's -set cannot change.
    """
    if guest.network == "none":
        return
    if guest.network != "user":
        raise VirtError(f"guest {guest.uuid} wants network {guest.network!r}; none or user do")
    if is_open:
        interface = ET.SubElement(devices, "interface", type="user")
        if guest.mac_address:
            ET.SubElement(interface, "mac", address=guest.mac_address)
        ET.SubElement(interface, "model", type="virtio")
        return
    card = f"virtio-net-pci,netdev={NETDEV},bus=pci.0,addr={CARD_SLOT}"
    card += f",mac={guest.mac_address}" if MAC.fullmatch(guest.mac_address) else ""
    command = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}commandline")
    for word in ("-netdev", f"user,id={NETDEV},restrict=on,ipv6=off", "-device", card):
        ET.SubElement(command, f"{{{QEMU_NAMESPACE}}}arg", value=word)


def _whole(text: str) -> int | None:
    """Return None for text that is no whole number: a user of virsh may write any text there."""
    try:
        return int(text)
    except ValueError:
        return None


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _printable(text: str) -> str:
    """Replace characters that are not printable: XML 1.0 cannot hold control characters, nor <title> a newline."""
    return "".join(character if character.isprintable() else " " for character in text)
