"""Guests that move between libvirtds which accept TLS only: encrypted, from known hosts, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud.tls import store
from compute.virt import load
from compute.virt.base import Command, Guest, HypervisorUnavailable, PowerState, Progress, VirtError
from deploy.local import libvirtd_conf
from deploy.local.libvirtd import LibvirtHost
from tests.servers.certificates import VALIDITY, Certificates
from tests.virt.conftest import Bench, Pair, wait_until
from tests.virt.test_moving import endless

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
NAMES = ("tls-a", "tls-b")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Short: a socket's path has to be."""
    folder = Path(tempfile.mkdtemp(prefix="sw-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def certificates(root: Path) -> Certificates:
    return made(root / "own")


def made(folder: Path) -> Certificates:
    """An authority, and a machine for each host."""
    found = Certificates(folder)
    store.update(folder, {name: (address_of(name),) for name in NAMES}, VALIDITY)
    return found


def index_of(name: str) -> int:
    return 100 + 40 * NAMES.index(name) + os.getpid() % 40


def address_of(name: str) -> str:
    return f"127.0.0.{11 + index_of(name)}"


@pytest.fixture(scope="module")
def hosts(root: Path, certificates: Certificates) -> Iterator[tuple[LibvirtHost, ...]]:
    with ExitStack() as stack:
        found = [LibvirtHost(name, root, index_of(name), pki=certificates.folder / name / "pki") for name in NAMES]
        yield tuple(stack.enter_context(host) for host in found)


def as_client(folder: Path, home: Path) -> Path:
    """The files of a machine as libvirt's `pkipath` has them: on one machine there is one /etc/pki."""
    folder.mkdir(exist_ok=True)
    shutil.copy(home / "ca.crt", folder / "cacert.pem")
    shutil.copy(home / f"{home.name}.crt", folder / "clientcert.pem")
    shutil.copy(home / f"{home.name}.key", folder / "clientkey.pem")
    return folder


@contextmanager
def drivers(
    folder: Path, image: Path, hosts: tuple[LibvirtHost, ...], client: Path, *, tls: bool = True
) -> Iterator[Pair]:
    """Two hosts that reach each other by TLS. At 1 MiB/s a guest of micro-dirty.img never arrives by itself."""
    benches = []
    for host in hosts:
        driver = load(
            "libvirt", uri=host.uri, state_dir=folder / host.name, virt_type="qemu", migration_bandwidth=1,
            migration_uri=f"{host.tls_uri}?pkipath={client}", migration_address=host.address, migration_tls=tls,
        )  # fmt: skip
        benches.append(Bench(driver, folder, image, host))
    try:
        yield Pair(*benches)
    finally:
        for bench in benches:
            for uuid in benches[0].made:
                bench.driver.destroy(uuid)
            bench.driver.close()


@pytest.fixture
def pair(tmp_path: Path, images: Path, hosts, certificates: Certificates) -> Iterator[Pair]:
    client = as_client(tmp_path / "client", certificates.folder / "tls-a")
    with drivers(tmp_path, images / "micro.img", hosts, client) as found:
        yield found


def monitor(host: LibvirtHost, uuid: str, command: str) -> Any:
    """What QEMU answers."""
    asked = json.dumps({"execute": command})
    done = libvirtd_conf.virsh(host, "qemu-monitor-command", uuid, asked, seconds=30)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["return"]


def once(look: Callable[[], None]) -> Callable[[Progress], Command]:
    """Look when the memory is on its way, then have the migration ended."""
    seen: list[None] = []

    def watch(progress: Progress) -> Command:
        if progress.memory_total and not seen:
            seen.append(look())
        return Command.END_NOW if seen else Command.GO_ON

    return watch


def arrives(pair: Pair, guest: Guest) -> None:
    pair.b.driver.finish_migration(guest)
    pair.a.driver.cleanup_source(guest.uuid)
    assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})


def stays(pair: Pair, guest: Guest) -> None:
    pair.a.driver.revert_migration(guest)
    pair.b.driver.cancel_pre_migrate(guest.uuid)
    assert pair.places() == ({guest.uuid: PowerState.RUNNING}, {})


def refuses_plain_text(url: str) -> bool:
    """Whether an NBD server takes no client without TLS."""
    done = subprocess.run(["qemu-img", "info", url], capture_output=True, text=True, timeout=30)
    return done.returncode != 0 and "TLS" in done.stderr


def test_memory_and_disk_of_a_running_guest_travel_encrypted(pair: Pair):
    guest = endless(pair)
    memory: dict[str, str] = {}
    disks: list[bool] = []

    def look() -> None:
        assert pair.a.host
        memory.update(monitor(pair.a.host, guest.uuid, "query-migrate-parameters"))
        nodes = monitor(pair.a.host, guest.uuid, "query-named-block-nodes")
        disks.extend(refuses_plain_text(node["file"]) for node in nodes if node["drv"] == "nbd")

    pair.a.driver.migrate_out(guest, pair.b.driver.pre_migrate(guest), once(look))
    arrives(pair, guest)
    assert (memory["tls-creds"], memory["tls-hostname"]) == ("objlibvirt_migrate_tls0", address_of("tls-b"))
    assert disks == [True]


def test_a_disk_of_a_guest_that_is_off_travels_to_the_daemon_by_tls(pair: Pair):
    guest = pair.a.running()
    pair.a.driver.power_off(guest.uuid)
    to = pair.b.driver.pre_migrate(guest)
    assert to["uri"].startswith("qemu+tls://")
    pair.a.driver.migrate_out(guest, to, lambda _: Command.GO_ON)
    pair.b.driver.finish_migration(guest)
    pair.a.driver.cleanup_source(guest.uuid)
    pair.b.driver.power_on(guest)
    assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})


@pytest.mark.parametrize("which", ["the source", "both"])
def test_plain_text_is_refused_by_the_hosts_even_if_a_worker_asks_for_it(which, tmp_path, images, hosts, certificates):
    """One that does not know the setting yet; `migrate_tls_force` of qemu.conf stands in its way."""
    client = as_client(tmp_path / "client", certificates.folder / "tls-a")
    with drivers(tmp_path, images / "micro.img", hosts, client, tls=False) as pair:
        guest = pair.a.running()
        to = dict(pair.b.driver.pre_migrate(guest))
        if which == "the source":
            to["tls"] = "required"
            pair.a.driver.migrate_out(guest, to, lambda _: Command.GO_ON)
            arrives(pair, guest)
            return
        with pytest.raises(VirtError, match="TLS"):
            pair.a.driver.migrate_out(guest, to, lambda _: Command.GO_ON)
        stays(pair, guest)


def test_a_guest_stays_while_a_certificate_of_its_destination_has_expired_and_goes_when_it_is_renewed(
    pair: Pair, certificates: Certificates
):
    """QEMU reads the files with each migration."""
    guest = pair.a.running()
    qemu = certificates.folder / "tls-b/pki/qemu"
    kept = {file: file.read_bytes() for file in qemu.iterdir()}
    certificates.expire("tls-b", (address_of("tls-b"),))
    shutil.copy(certificates.folder / "tls-b/tls-b.crt", qemu / "server-cert.pem")
    shutil.copy(certificates.folder / "tls-b/tls-b.key", qemu / "server-key.pem")
    with pytest.raises(VirtError, match=r"expired.*manage.py tls_certificates makes and renews them"):
        pair.a.driver.migrate_out(guest, pair.b.driver.pre_migrate(guest), lambda _: Command.GO_ON)
    stays(pair, guest)
    for file, content in kept.items():
        file.write_bytes(content)
    pair.a.driver.migrate_out(guest, pair.b.driver.pre_migrate(guest), lambda _: Command.GO_ON)
    arrives(pair, guest)


def test_a_worker_with_a_certificate_of_another_authority_does_not_reach_the_daemon(
    tmp_path, images, hosts, certificates, root
):
    strangers = made(root / "other")
    client = as_client(tmp_path / "client", strangers.folder / "tls-a")
    with drivers(tmp_path, images / "micro.img", hosts, client) as pair:
        guest = pair.a.running()
        to = pair.b.driver.pre_migrate(guest)
        with pytest.raises(HypervisorUnavailable, match=r"certificate.*manage.py tls_certificates makes and renews"):
            pair.a.driver.check_can_migrate(guest.uuid, to)
        stays(pair, guest)
        as_client(client, certificates.folder / "tls-a")  # mended
        wait_until(lambda: pair.a.driver.check_can_migrate(guest.uuid, to) is None, "the daemon is reached")
