"""Disks of guests that are off, from one real libvirtd to another."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from compute.virt.base import (
    Command,
    Guest,
    GuestNotFound,
    HypervisorUnavailable,
    MigrationAborted,
    PowerState,
    Progress,
    VirtError,
)
from compute.virt.libvirt import cold_migration, qemu_img
from compute.virt.libvirt.destination import opened
from compute.virt.libvirt.files import files_of
from compute.virt.libvirt.migration import MigrationEndpoint
from deploy.local.libvirtd import LibvirtHost
from tests.virt.conftest import READY, Bench, Pair, libvirt_pair, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
Hosts = tuple[LibvirtHost, LibvirtHost]
ROOT = Path(__file__).parents[2]
GIB, MIB = 1 << 30, 1 << 20
FILLED = 200 * MIB


@pytest.fixture
def pair(tmp_path: Path, images: Path, hosts: Hosts) -> Iterator[Pair]:
    """Hosts that have nothing in common."""
    with libvirt_pair(tmp_path, images / "micro.img", hosts) as found:
        yield found


@pytest.fixture
def source(pair: Pair) -> Bench:
    """Where guests are."""
    return pair.a


@pytest.fixture
def destination(pair: Pair) -> Bench:
    """Where they go."""
    return pair.b


def off(bench: Bench) -> Guest:
    """A guest that was up once, and is off."""
    guest = bench.running()
    bench.driver.power_off(guest.uuid)
    return guest


def go_on(_: Progress) -> Command:
    return Command.GO_ON


def disk_of(bench: Bench, guest: Guest) -> Path:
    return files_of(bench.driver._guests, guest.uuid).disk


def content(disk: Path) -> str:
    """What the guest sees, as a checksum."""
    raw = disk.with_name("raw")
    subprocess.run(["qemu-img", "convert", "-U", "-O", "raw", str(disk), str(raw)], check=True, timeout=60)
    with raw.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    raw.unlink()
    return found


def large(bench: Bench) -> Guest:
    """One with something to copy: it takes a second or so."""
    guest, size = off(bench), f"{FILLED // MIB}M"
    disk = disk_of(bench, guest)
    subprocess.run(["qemu-img", "resize", "-q", str(disk), "400M"], check=True, timeout=60)
    subprocess.run(["qemu-io", "-c", f"write -q -P 7 1M {size}", str(disk)], check=True, timeout=60)
    return guest


def moved(source: Bench, destination: Bench, guest: Guest) -> None:
    to = destination.driver.pre_migrate(guest)
    source.driver.migrate_out(guest, to, go_on)
    destination.driver.finish_migration(guest)


def test_a_guest_that_is_off_comes_with_its_disk_and_its_console(source: Bench, destination: Bench):
    guest = off(source)
    before, said = content(disk_of(source, guest)), source.driver.console_output(guest.uuid)
    moved(source, destination, guest)
    assert (source.driver.guests(), destination.driver.guests()) == ({}, {guest.uuid: PowerState.SHUTDOWN})
    assert content(disk_of(destination, guest)) == before
    assert qemu_img.stands_alone(disk_of(destination, guest))
    assert destination.driver.console_output(guest.uuid) == said
    destination.driver.power_on(guest)
    assert "boots=2" in destination.wait_console(guest.uuid, READY, times=2)


def test_a_disk_that_stands_alone_goes_on(source: Bench, destination: Bench):
    guest = off(source)
    moved(source, destination, guest)
    source.driver.cleanup_source(guest.uuid)
    moved(destination, source, guest)
    assert (source.driver.guests(), destination.driver.guests()) == ({guest.uuid: PowerState.SHUTDOWN}, {})
    source.driver.power_on(guest)
    assert "boots=2" in source.wait_console(guest.uuid, READY, times=2)


def test_it_settles_in_its_new_size_and_goes_back_in_its_old_one(source: Bench, destination: Bench):
    guest = off(source)
    larger = replace(guest, vcpus=2, memory_mb=32, disk_gb=1)
    to = destination.driver.pre_migrate(guest)
    source.driver.migrate_out(guest, to, go_on)
    for _ in range(2):
        destination.driver.finish_migration(larger)
    assert qemu_img.virtual_size(disk_of(destination, guest), "qcow2") == GIB
    destination.driver.power_on(larger)
    _, _, memory, vcpus, _ = destination.driver._guest(guest.uuid).domain.info()
    assert (vcpus, memory) == (2, 32 << 10)
    destination.wait_console(guest.uuid, READY, times=2)

    destination.driver.power_off(guest.uuid)
    source.driver.revert_migration(guest)
    destination.driver.destroy(guest.uuid)
    assert (source.driver.guests(), destination.driver.guests()) == ({guest.uuid: PowerState.SHUTDOWN}, {})
    assert qemu_img.virtual_size_in_use(disk_of(source, guest)) < GIB
    source.driver.power_on(guest)
    assert "boots=2" in source.wait_console(guest.uuid, READY, times=2), "it has the disk it had then"


def test_the_way_is_shown_and_can_be_ended(source: Bench, destination: Bench):
    guest = large(source)
    before = content(disk_of(source, guest))
    seen: list[Progress] = []

    def end_half_way(progress: Progress) -> Command:
        seen.append(progress)
        return Command.ABORT if progress.disk_left < progress.disk_total / 2 else Command.GO_ON

    to = destination.driver.pre_migrate(guest)
    with pytest.raises(MigrationAborted):
        source.driver.migrate_out(guest, to, end_half_way)
    assert seen[-1].disk_total >= 2 * FILLED, "copied once here, and once over there"
    assert sorted(seen, key=lambda progress: -progress.disk_left) == seen
    source.driver.revert_migration(guest)
    destination.driver.cancel_pre_migrate(guest.uuid)
    assert (source.driver.guests(), destination.driver.guests()) == ({guest.uuid: PowerState.SHUTDOWN}, {})
    assert content(disk_of(source, guest)) == before
    is_tidy(source, destination, guest)


def is_tidy(source: Bench, destination: Bench, guest: Guest) -> None:
    """Nothing is left of the attempt on either host."""
    files = disk_of(source, guest).parent.iterdir()
    assert sorted(path.name for path in files) == ["console.log", "disk.qcow2", "owner"]
    assert not disk_of(destination, guest).parent.exists()
    assert destination.driver._host.connection.listAllStoragePools() == []


DIES = """
import os, signal, sys
from compute.virt import load
from compute.virt.base import Command, Guest, Image
uri, state, part, guest, to = eval(sys.stdin.read())
def watch(progress):
    if progress.disk_left < progress.disk_total * part:
        os.kill(os.getpid(), signal.SIGKILL)
    return Command.GO_ON
load("libvirt", uri=uri, state_dir=state, virt_type="qemu").migrate_out(guest, to, watch)
"""


def killed(source: Bench, guest: Guest, to: Mapping[str, str], part: float) -> None:
    """A worker at the source that hands the guest over, and is killed when less than so much is left to do."""
    assert source.host is not None
    said = repr((source.host.uri, str(source.driver._state), part, guest, dict(to)))
    done = subprocess.run([sys.executable, "-c", DIES], input=said, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("part", [1.0, 0.75, 0.25], ids=["copied here", "half copied here", "half sent"])
def test_a_source_killed_on_the_way_begins_again(part: float, source: Bench, destination: Bench):
    guest = large(source)
    before, to = content(disk_of(source, guest)), destination.driver.pre_migrate(guest)
    killed(source, guest, to, part)
    assert destination.driver.guests() == {}
    with pytest.raises(GuestNotFound):
        destination.driver.finish_migration(guest)
    source.driver.migrate_out(guest, to, go_on)
    destination.driver.finish_migration(guest)
    assert (source.driver.guests(), destination.driver.guests()) == ({}, {guest.uuid: PowerState.SHUTDOWN})
    assert content(disk_of(destination, guest)) == before
    assert not list(disk_of(source, guest).parent.glob("disk.leaving"))


def test_a_source_killed_on_the_way_can_have_it_back(source: Bench, destination: Bench):
    guest = large(source)
    before, to = content(disk_of(source, guest)), destination.driver.pre_migrate(guest)
    killed(source, guest, to, 0.25)
    source.driver.revert_migration(guest)
    destination.driver.cancel_pre_migrate(guest.uuid)
    assert content(disk_of(source, guest)) == before
    is_tidy(source, destination, guest)
    source.driver.power_on(guest)
    assert "boots=2" in source.wait_console(guest.uuid, READY, times=2)


def test_a_host_that_may_send_so_much_a_second_sends_no_more(source: Bench, destination: Bench):
    guest = large(source)
    to, begun = destination.driver.pre_migrate(guest), time.monotonic()
    source.driver._endpoint = MigrationEndpoint(bandwidth=FILLED // MIB // 4)
    source.driver.check_can_migrate(guest.uuid, to)
    source.driver.migrate_out(guest, to, go_on)
    assert time.monotonic() - begun >= 4
    destination.driver.finish_migration(guest)


def test_a_disk_that_is_in_use_is_not_copied(source: Bench, destination: Bench):
    guest = source.running()
    to = destination.driver.pre_migrate(guest)
    files = files_of(source.driver._guests, guest.uuid)
    with opened(to, "own") as there, pytest.raises(VirtError, match="lock"):
        cold_migration.send(files, there, go_on)


def test_a_destination_that_went_away_says_so_and_the_guest_is_here(source: Bench, destination: Bench):
    guest = off(source)
    to = dict(destination.driver.pre_migrate(guest)) | {"uri": "qemu+unix:///system?socket=/nowhere"}
    asks = (
        lambda: source.driver.check_can_migrate(guest.uuid, to), lambda: source.driver.migrate_out(guest, to, go_on)
    )  # fmt: skip
    for ask in asks:
        with pytest.raises(HypervisorUnavailable):
            ask()
    source.driver.revert_migration(guest)
    assert source.driver.guests() == {guest.uuid: PowerState.SHUTDOWN}


def test_a_destination_that_hangs_while_the_disk_is_sent_is_given_up_and_asked_again(source: Bench, destination: Bench):
    guest = large(source)
    to, hung = destination.driver.pre_migrate(guest), []
    assert destination.host is not None
    daemon = destination.host.pid()
    assert daemon is not None

    def hang(progress: Progress) -> Command:
        if progress.disk_left < progress.disk_total / 3 and not hung:
            hung.append(time.monotonic())
            os.kill(daemon, signal.SIGSTOP)
        return Command.GO_ON

    source.driver._endpoint = MigrationEndpoint(bandwidth=FILLED // MIB // 4)
    try:
        with pytest.raises(HypervisorUnavailable):
            source.driver.migrate_out(guest, to, hang)
        assert time.monotonic() - hung[0] < 60
    finally:
        os.kill(daemon, signal.SIGCONT)
    source.driver._endpoint = MigrationEndpoint()
    source.driver.migrate_out(guest, to, go_on)
    destination.driver.finish_migration(guest)
    assert (source.driver.guests(), destination.driver.guests()) == ({}, {guest.uuid: PowerState.SHUTDOWN})


# -- hosts that share the folder of their guests


@pytest.fixture
def shared(tmp_path: Path, images: Path, hosts: Hosts) -> Iterator[tuple[Bench, Bench]]:
    """The same two hosts."""
    with libvirt_pair(tmp_path, images / "micro.img", hosts, shared=True) as found:
        yield found.a, found.b


@pytest.mark.parametrize("word", ["confirmed", "reverted", "reverted, the destination first"])
def test_on_shared_storage_the_old_disk_is_kept_for_a_revert(word: str, shared: tuple[Bench, Bench]):
    source, destination = shared
    guest = off(source)
    larger = replace(guest, disk_gb=1)
    to = destination.driver.pre_migrate(guest)
    assert to["storage"] == "shared"
    source.driver.migrate_out(guest, to, go_on)
    destination.driver.finish_migration(larger)
    destination.driver.power_on(larger)
    assert "boots=2" in destination.wait_console(guest.uuid, READY, times=2)
    destination.driver.power_off(guest.uuid)
    if word == "confirmed":
        source.driver.cleanup_source(guest.uuid)
        home, boots = destination, 3
    else:
        back = [lambda: source.driver.revert_migration(guest), lambda: destination.driver.destroy(guest.uuid)]
        for verb in back if word == "reverted" else reversed(back):
            verb()
        home, boots = source, 2
    other = source if home is destination else destination
    assert (home.driver.guests(), other.driver.guests()) == ({guest.uuid: PowerState.SHUTDOWN}, {})
    home.driver.power_on(guest)
    wait_until(lambda: f"boots={boots}" in home.driver.console_output(guest.uuid), f"{boots} boots")
    assert {path.name for path in source.driver._guests.iterdir()} == {"images", guest.uuid}


def test_on_shared_storage_a_copy_that_is_ended_leaves_the_disk(shared: tuple[Bench, Bench]):
    source, destination = shared
    guest = off(source)
    to = destination.driver.pre_migrate(guest)
    with pytest.raises(MigrationAborted):
        source.driver.migrate_out(guest, to, lambda _: Command.ABORT)
    source.driver.revert_migration(guest)
    destination.driver.cancel_pre_migrate(guest.uuid)
    assert (source.driver.guests(), destination.driver.guests()) == ({guest.uuid: PowerState.SHUTDOWN}, {})
    source.driver.power_on(guest)
    assert "boots=2" in source.wait_console(guest.uuid, READY, times=2)
