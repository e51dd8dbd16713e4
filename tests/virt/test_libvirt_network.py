"""What a guest with a network card reaches, tried from inside a real one: nothing of its host, nor beyond it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4
from xml.etree import ElementTree as ET

import libvirt
import pytest

from compute.virt import load
from compute.virt.base import Command, Guest, PowerState
from deploy.guests.build import build
from deploy.local.libvirtd import LibvirtHost
from tests.virt.conftest import GUESTS, READY, Bench, libvirt_pair, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
MAC = "52:54:00:12:34:56"
WITH_DHCP = (
    "ip link set eth0 up; udhcpc -i eth0 -n -q -t 10 -T 1 2>&1 | tail -1; ip addr add 10.0.2.15/24 dev eth0; "
    "ip route add default via 10.0.2.2"
)
WITH_IPV6 = "ip -6 addr add fec0::15/64 dev eth0 nodad; ip -6 route add default via fec0::2"
WITH_LOOPBACK = (  # what the guest calls 127.0.0.1 leaves by its card
    "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip addr del 127.0.0.1/8 dev lo; "
    "ip route add 127.0.0.1 via 10.0.2.2 src 10.0.2.15"
)
SECONDS = 30.0


@dataclass
class Listeners:
    """Services of the host, and which of them somebody reached."""

    ports: dict[str, int] = field(default_factory=dict)
    reached: list[str] = field(default_factory=list)
    _open: list[socket.socket] = field(default_factory=list)

    def listen(self, address: str) -> None:
        """On a port of its own."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        served = socket.create_server((address, 0), family=family)
        self.ports[address] = served.getsockname()[1]
        self._open.append(served)
        threading.Thread(target=self._serve, args=(served, address), daemon=True).start()

    def close(self) -> None:
        for served in self._open:
            served.shutdown(socket.SHUT_RDWR)
            served.close()

    def _serve(self, served: socket.socket, address: str) -> None:
        while True:
            try:
                peer, _ = served.accept()
            except OSError:
                return
            with peer:
                self.reached.append(address)
                peer.sendall(b"secret\n")


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    """On loopback, and on every other address the host has, as far as it has any."""
    listeners = Listeners()
    for address in ("127.0.0.1", "127.0.0.77", "::1", *host_addresses()):
        listeners.listen(address)
    yield listeners
    listeners.close()


def host_addresses() -> list[str]:
    """Those that are not of loopback."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            try:
                asked.connect((far, 9))  # sends nothing
            except OSError:
                continue
            found.append(asked.getsockname()[0])
    return [address for address in found if not address.startswith(("127.", "::1"))]


class Shell:
    """The root shell on a guest's serial console."""

    def __init__(self, bench: Bench, guest: Guest) -> None:
        self._bench, self._guest, self._count = bench, guest, 0
        self._mark = uuid4().hex[:8]  # what was said elsewhere came with the guest
        connection = libvirt.open(bench.host.uri)
        try:
            domain = ET.fromstring(connection.lookupByUUIDString(guest.uuid).XMLDesc())
        finally:
            connection.close()
        pty = domain.find("devices/serial/source").get("path")
        self._terminal = open(pty, "wb", buffering=0)  # noqa: SIM115 - kept open: QEMU sees it within a second

    def run(self, command: str) -> str:
        """What a command says."""
        self._count += 1
        words = f"{command}; echo EN''D{self._mark}-{self._count}-\n".encode()
        self._terminal.write(words)
        before, end = (f"END{self._mark}-{count}-" for count in (self._count - 1, self._count))
        said = wait_until(lambda: (out := self._said()).count(end) and out, f"{command}: {end}", SECONDS)
        return said.split(end)[0].rsplit(before, 1)[-1]

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._terminal.close()

    def asks(self, address: str, port: int) -> str:
        """What a service says; "" if it cannot be reached."""
        said = self.run(f"echo | nc -w 2 {address} {port} 2>&1")
        return "secret" if re.search(r"^secret", said, re.MULTILINE) else ""

    def _said(self) -> str:
        return self._bench.driver.console_output(self._guest.uuid).replace("\r", "")


def with_a_card(bench: Bench) -> Guest:
    """A Linux that is up."""
    image = build(GUESTS)[-1]
    guest = replace(bench.guest(bench.use(image, "qcow2"), memory_mb=96), network="user", mac_address=MAC)
    bench.driver.spawn(guest, bench.fetch)
    wait_until(lambda: READY in bench.driver.console_output(guest.uuid), "Linux is ready", seconds=120)
    return guest


def tries_all(shell: Shell, listeners: Listeners) -> dict[str, str]:
    """What each address says, by the ways a guest has to it."""
    assert "10.0.2.15" in shell.run(WITH_DHCP)
    shell.run(WITH_IPV6)
    loopback = listeners.ports["127.0.0.1"]
    answers = {"the host as 10.0.2.2": shell.asks("10.0.2.2", loopback),
               "the host as fec0::2": shell.asks("fec0::2", listeners.ports["::1"])}  # fmt: skip
    for address in host_addresses():
        answers[address] = shell.asks(address, listeners.ports[address])
    said = shell.run("nslookup example.com 10.0.2.3 2>&1; ping -c 1 -W 2 192.0.2.1 2>&1")
    answers["DNS"] = "answers" if "no servers could be reached" not in said else ""
    shell.run(WITH_LOOPBACK)
    answers["127.0.0.1 by its card"] = shell.asks("127.0.0.1", loopback)
    return answers


@contextmanager
def a_host(folder: Path, host: LibvirtHost, images: Path, **options: bool) -> Iterator[Bench]:
    driver = load("libvirt", uri=host.uri, state_dir=folder / "state", virt_type="qemu", **options)
    bench = Bench(driver, folder, images / "micro.img", host)
    yield bench
    for made in bench.made:
        driver.destroy(made)
    driver.close()


def test_a_guest_reaches_neither_the_services_of_its_host_nor_anything_else(
    libvirt_host: LibvirtHost, tmp_path: Path, images: Path, listeners: Listeners
):
    """It reached every port of its host's 127.0.0.1: Redis, /metrics and all that trusts loopback."""
    with a_host(tmp_path, libvirt_host, images) as bench, Shell(bench, with_a_card(bench)) as shell:
        answers = tries_all(shell, listeners)
    assert not any(answers.values()), answers
    assert listeners.reached == []


def test_a_guest_of_a_host_that_opens_its_network_reaches_them(
    libvirt_host: LibvirtHost, tmp_path: Path, images: Path, listeners: Listeners
):
    """What the closed network closes, and that this way of trying finds it."""
    opened = a_host(tmp_path, libvirt_host, images, open_network=True)
    with opened as bench, Shell(bench, with_a_card(bench)) as shell:
        answers = tries_all(shell, listeners)
    assert (answers["the host as 10.0.2.2"], answers["127.0.0.1 by its card"]) == ("secret", "secret")
    assert {"127.0.0.1", *(one for one in host_addresses() if ":" not in one)} <= set(listeners.reached)


def test_a_guest_with_a_card_moves_and_its_network_is_closed_there_too(
    tmp_path: Path, images: Path, hosts: tuple[LibvirtHost, LibvirtHost], listeners: Listeners
):
    with libvirt_pair(tmp_path, images / "micro.img", hosts) as pair:
        guest = with_a_card(pair.a)
        with Shell(pair.a, guest) as shell:
            assert "10.0.2.15" in shell.run(WITH_DHCP)
        pair.a.driver.migrate_out(guest, pair.b.driver.pre_migrate(guest), lambda _: Command.GO_ON)
        pair.b.driver.finish_migration(guest)
        pair.a.driver.cleanup_source(guest.uuid)
        assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})
        pair.b.driver.suspend(guest.uuid)
        pair.b.driver.resume(guest)
        with Shell(pair.b, guest) as shell:
            assert MAC in shell.run("cat /sys/class/net/eth0/address")
            assert shell.asks("10.0.2.2", listeners.ports["127.0.0.1"]) == ""
    assert listeners.reached == []
