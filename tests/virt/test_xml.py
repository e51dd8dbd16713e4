"""Domain XML, and libvirt's errors, with libvirt's own mock hypervisor: quick, no QEMU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

libvirt = pytest.importorskip("libvirt")

from compute.virt.base import (  # noqa: E402 - libvirt may be absent where only the fake is used
    Guest,
    GuestInvalidState,
    GuestNotFound,
    HypervisorUnavailable,
    Image,
    InsufficientResources,
    NotSupported,
    OperationTimedOut,
    PowerState,
    ShutdownPreference,
    VirtError,
)
from compute.virt.libvirt import agent, xml  # noqa: E402
from compute.virt.libvirt.errors import kind_of, translated  # noqa: E402
from compute.virt.libvirt.guest import LibvirtGuest, power_state  # noqa: E402

NASTY = "</title><devices/>&\"'<!--\n\x00\x1b ü 🐧"
NASTY_TEXT = "</clock>\"'<!-- ü 🐧"
GUEST = Guest(
    uuid="6f0a1d3e-0000-4000-8000-000000000001",
    name="instance-0000002a",
    display_name=NASTY,
    vcpus=2,
    memory_mb=96,
    disk_gb=1,
    image=Image('i<>&"', "raw"),
    project_id="p&p",
)


MAC = "52:54:00:12:34:56"


def definition(guest: Guest = GUEST, virt_type: str = "qemu", **options: bool) -> str:
    folder = Path("/guests/with space & <more>")
    return xml.domain_xml(
        guest, disk=folder / "disk.qcow2", console=folder / "console.log", virt_type=virt_type, **options
    )


def test_nothing_a_user_typed_becomes_xml():
    root = ET.fromstring(definition())
    space = f"{{{xml.NAMESPACE}}}"
    assert root.findtext(f"metadata/{space}guest/{space}name") == root.findtext("title")
    assert root.findtext("title") == "</title><devices/>&\"'<!--    ü 🐧"
    assert root.findtext(f"metadata/{space}guest/{space}project") == "p&p"
    assert root.findtext(f"metadata/{space}guest/{space}image") == 'i<>&"'
    assert len(root.findall("devices")) == 1
    disk = root.find("devices/disk/source")
    assert disk is not None
    assert disk.get("file") == "/guests/with space & <more>/disk.qcow2"


def test_software_emulation_keeps_its_cache_small():
    root = ET.fromstring(definition())
    assert root.get("type") == "qemu"
    assert root.findtext("features/tcg/tb-cache") == "16"
    assert root.find("cpu") is None
    assert root.find("devices/interface") is None


def test_kvm_shows_the_hosts_cpu():
    root = ET.fromstring(definition(virt_type="kvm"))
    assert root.find("features/tcg") is None
    assert root.find("cpu").get("mode") == "host-model"


def test_a_network_card_is_on_a_network_that_carries_nothing():
    root = ET.fromstring(definition(replace(GUEST, network="user", mac_address=MAC)))
    assert root.find("devices/interface") is None
    said = [arg.get("value") for arg in root.find(f"{{{xml.QEMU_NAMESPACE}}}commandline")]
    assert said[:3] == ["-netdev", "user,id=stillwater0,restrict=on,ipv6=off", "-device"]
    assert said[3] == f"virtio-net-pci,netdev=stillwater0,bus=pci.0,addr=0x1e,mac={MAC}"
    for address in ("", f"{MAC},romfile=/etc/shadow"):
        assert ",mac=" not in definition(replace(GUEST, network="user", mac_address=address))


def test_an_open_network_is_libvirts_own():
    interface = ET.fromstring(definition(replace(GUEST, network="user", mac_address=MAC), open_network=True)).find(
        "devices/interface"
    )
    assert interface.get("type") == "user"
    assert interface.find("mac").get("address") == MAC
    with pytest.raises(VirtError):
        definition(replace(GUEST, network="bridge"))


@pytest.mark.parametrize(
    ("flags", "writable", "chosen"),
    [("vmx", True, "kvm"), ("svm", True, "kvm"), ("fpu", True, "qemu"), ("vmx", False, "qemu")],
)
def test_kvm_needs_a_device_and_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, writable: bool, chosen: str
):
    (tmp_path / "cpuinfo").write_text(f"flags\t: fpu {flags} sse\n")
    if writable:
        (tmp_path / "kvm").touch()
    monkeypatch.setattr(xml, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(xml, "KVM", tmp_path / "kvm")
    assert xml.choose_virt_type() == chosen
    assert xml.choose_virt_type("kvm") == "kvm"


@pytest.fixture
def mock():
    """libvirt's mock hypervisor; its state ends with the connection."""
    libvirt.registerErrorHandler(lambda *_: None, None)
    connection = libvirt.open("test:///default")
    yield connection
    connection.close()


@pytest.fixture
def guest(mock) -> LibvirtGuest:
    text = definition().replace("<domain type='qemu'", "<domain type='test'")
    root = ET.fromstring(text)
    root.set("type", "test")
    return LibvirtGuest(mock.defineXML(ET.tostring(root, encoding="unicode")))


def test_libvirt_takes_our_definition(guest: LibvirtGuest):
    assert guest.domain.UUIDString() == GUEST.uuid
    assert guest.power_state() is PowerState.SHUTDOWN


def test_verbs_of_one_guest_on_the_mock(guest: LibvirtGuest):
    with pytest.raises(VirtError):
        guest.pause()
    guest.start()
    guest.pause()
    assert guest.power_state() is PowerState.PAUSED
    guest.unpause()
    assert guest.power_state() is PowerState.RUNNING
    with pytest.raises(NotSupported):  # the mock has no jobs
        guest.job()
    guest.stop()
    guest.forget_saved_memory()
    assert guest.power_state() is PowerState.SHUTDOWN


def test_an_unknown_guest_is_not_found(mock):
    with pytest.raises(GuestNotFound), translated():
        mock.lookupByUUIDString("6f0a1d3e-0000-4000-8000-00000000ffff")


class Said(libvirt.libvirtError):
    """An error as libvirt would raise it."""

    def __init__(self, code: int, text: str = "", domain: int = 0, number: int = 0) -> None:
        Exception.__init__(self, text)
        self.err = (code, domain, text, 2, None, None, None, number, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Said(libvirt.VIR_ERR_NO_DOMAIN), GuestNotFound),
        (Said(libvirt.VIR_ERR_OPERATION_INVALID), GuestInvalidState),
        (Said(libvirt.VIR_ERR_INTERNAL_ERROR, domain=libvirt.VIR_FROM_RPC), HypervisorUnavailable),
        (Said(libvirt.VIR_ERR_SYSTEM_ERROR, domain=libvirt.VIR_FROM_RPC), HypervisorUnavailable),
        (Said(libvirt.VIR_ERR_NO_MEMORY), InsufficientResources),
        (Said(libvirt.VIR_ERR_SYSTEM_ERROR, number=28), InsufficientResources),
        (
            Said(libvirt.VIR_ERR_INTERNAL_ERROR, "qemu: cannot set up guest memory 'pc.ram'"),
            InsufficientResources,
        ),
        (Said(libvirt.VIR_ERR_OPERATION_TIMEOUT), OperationTimedOut),
        (Said(libvirt.VIR_ERR_NO_SUPPORT), NotSupported),
        (Said(libvirt.VIR_ERR_INTERNAL_ERROR, "odd"), VirtError),
        (Said(-17), VirtError),
    ],
)
def test_libvirts_errors_become_ours(error: Said, kind: type[VirtError]):
    assert kind_of(error) is kind


def test_every_state_of_libvirt_is_known():
    off, crashed = libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED
    assert power_state(off, crashed) is PowerState.CRASHED
    assert power_state(off, crashed, has_saved_memory=True) is PowerState.SUSPENDED
    assert power_state(libvirt.VIR_DOMAIN_SHUTDOWN, 0) is PowerState.RUNNING
    assert power_state(99, 0) is PowerState.NOSTATE


@pytest.mark.parametrize(("word", "there"), [("yes", 1), ("True", 1), (" 1", 1), ("no", 0), ("", 0), ("maybe", 0)])
def test_a_guest_whose_image_has_an_agent_has_a_channel_for_it(word: str, there: int):
    image = replace(GUEST.image, properties={"hw_qemu_guest_agent": word})
    written = definition(replace(GUEST, image=image))
    targets = ET.fromstring(written).findall("devices/channel[@type='unix']/target")
    assert [target.get("name") for target in targets] == ["org.qemu.guest_agent.0"] * there
    assert not agent.is_there(written), "nobody listens in a definition"
    assert agent.is_there(written.replace('name="org.qemu', 'state="connected" name="org.qemu')) == bool(there)


@pytest.mark.parametrize(("seconds", "priority"), [(None, 0), (0, -7), (3600, 12)])
def test_how_a_guest_wants_to_be_shut_down_is_read_as_it_was_written(seconds, priority):
    guest = replace(GUEST, display_name="n", shutdown_timeout=seconds, shutdown_priority=priority)
    element = ET.fromstring(definition(guest)).find(f"metadata/{{{xml.NAMESPACE}}}guest")
    assert xml.shutdown_preference(ET.tostring(element, encoding="unicode")) == guest.shutdown_preference


def test_what_somebody_else_wrote_of_a_shutdown_is_not_believed():
    said = "<guest><name>n</name><shutdown_timeout>soon</shutdown_timeout><shutdown_priority/></guest>"
    assert xml.shutdown_preference(said) == ShutdownPreference("n")
    assert xml.shutdown_preference("<guest/>") == ShutdownPreference("")
    assert xml.note_text(xml.note_xml("timer", NASTY_TEXT)) == NASTY_TEXT
    assert xml.note_text("") == ""


@pytest.mark.parametrize("reason", ["SHUTTING_DOWN", "SNAPSHOT", "DUMP", "STARTING_UP"])
def test_a_pause_of_a_moment_is_none(reason: str):
    code = getattr(libvirt, f"VIR_DOMAIN_PAUSED_{reason}")
    assert power_state(libvirt.VIR_DOMAIN_PAUSED, code) is PowerState.RUNNING
    assert power_state(libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER) is PowerState.PAUSED
