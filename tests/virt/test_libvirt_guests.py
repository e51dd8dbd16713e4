"""What only real guests show: their disks, a slow one, a deaf one, and Linux."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from compute.virt.base import Guest, ImageUnusable, PowerState, VirtError
from compute.virt.image_check import write_empty_qcow2
from compute.virt.libvirt import disk, qemu_img, snapshot
from compute.virt.libvirt.guest import LibvirtGuest
from deploy.guests.build import build
from deploy.local import libvirtd_conf
from tests.virt.conftest import GUESTS, READY, Bench, wait_until

pytestmark = pytest.mark.live


def test_tiny_linux_boots_and_obeys_its_power_button(libvirt_bench: Bench):
    bench = libvirt_bench
    image = build(GUESTS)[-1]
    guest = replace(bench.guest(bench.use(image, "qcow2"), memory_mb=96), network="user")
    bench.driver.spawn(guest, bench.fetch)
    wait_until(
        lambda: READY in bench.driver.console_output(guest.uuid), "Linux is ready", seconds=90
    )
    assert "STILLWATER BOOT image=tiny-linux" in bench.driver.console_output(guest.uuid)
    bench.driver.signal_shutdown(guest.uuid)
    assert bench.driver.wait_until_off(guest.uuid, 60)
    said = bench.driver.console_output(guest.uuid)
    assert "STILLWATER POWERBTN" in said
    assert "STILLWATER DOWN poweroff" in said
    assert bench.wait_event(guest.uuid, PowerState.SHUTDOWN).detail == "shutdown"


def test_a_deaf_guest_stays_up_until_the_plug_is_pulled(libvirt_bench: Bench):
    bench = libvirt_bench
    guest = bench.running(bench.use(GUESTS / "micro-deaf.img"))
    bench.driver.signal_shutdown(guest.uuid)
    bench.wait_console(guest.uuid, "STILLWATER POWERBTN")
    assert bench.driver.wait_until_off(guest.uuid, 0.5) is False
    bench.driver.power_off(guest.uuid)
    assert bench.driver.wait_until_off(guest.uuid, 0) is True


def test_a_slow_guest_takes_its_time(libvirt_bench: Bench):
    bench = libvirt_bench
    guest = bench.running(bench.use(GUESTS / "micro-slow.img"))
    start = time.monotonic()
    bench.driver.signal_shutdown(guest.uuid)
    assert bench.driver.wait_until_off(guest.uuid, 30) is True
    assert time.monotonic() - start > 2


def test_a_reboot_killed_between_the_definition_and_the_start_only_powers_on(
    libvirt_bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        """kill -9."""

    def die(_: LibvirtGuest) -> None:
        raise Killed

    bench = libvirt_bench
    guest = bench.running()
    with monkeypatch.context() as patched:
        patched.setattr(LibvirtGuest, "start", die)
        with pytest.raises(Killed):
            bench.driver.reboot_hard(guest, "7")
    assert bench.power(guest) is PowerState.SHUTDOWN
    assert not bench.driver.rebooted(guest.uuid, "7")

    with monkeypatch.context() as patched:  # nothing is pulled or defined any more
        patched.setattr(LibvirtGuest, "stop", die)
        bench.driver.reboot_hard(guest, "7")

    assert bench.driver.rebooted(guest.uuid, "7")
    assert bench.wait_console(guest.uuid, READY, times=2).count(READY) == 2
    said = virsh(bench, "metadata", guest.uuid, "urn:stillwater:guest:1")
    assert "reboot>7</" in said


def disks_of(bench: Bench, guest: Guest) -> list[str]:
    """The disks it has now, in order."""
    lines = [line.split() for line in virsh(bench, "domblklist", guest.uuid).splitlines()]
    return [f"{words[0]} {Path(words[1]).name}" for words in lines if words and words[0].startswith("vd")]


def virsh(bench: Bench, *words: str) -> str:
    """What virsh prints for the bench's libvirtd."""
    assert bench.host
    done = libvirtd_conf.virsh(bench.host, *words, seconds=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_disk_is_as_large_as_was_asked(libvirt_bench: Bench):
    bench = libvirt_bench
    guest = replace(bench.guest(), disk_gb=2)
    bench.driver.spawn(guest, bench.fetch)
    file = bench.folder / "state/guests" / guest.uuid / "disk.qcow2"
    assert "virtual size: 2 GiB" in _info(str(file))
    target = bench.folder / "copy.qcow2"
    assert bench.driver.snapshot(guest.uuid, target).virtual_size == 2 << 30


def test_an_image_larger_than_the_disk_is_refused(libvirt_bench: Bench):
    bench = libvirt_bench
    large = bench.folder / "large.qcow2"
    write_empty_qcow2(large, (1 << 30) + 512)
    guest = replace(bench.guest(bench.use(large, "qcow2")), disk_gb=1)
    with pytest.raises(ImageUnusable):
        bench.driver.spawn(guest, bench.fetch)
    assert bench.power(guest) is PowerState.NOSTATE


def test_a_spawn_that_died_half_way_is_completed(libvirt_bench: Bench):
    bench = libvirt_bench
    for died in (lambda bench, guest: None, _after_the_disk, _after_the_definition):
        guest = bench.guest()
        folder = bench.folder / "state/guests" / guest.uuid
        folder.mkdir()
        (folder / "disk.part").write_bytes(b"half of a disk")
        (bench.folder / "state/images").mkdir(exist_ok=True)
        (bench.folder / f"state/images/{guest.image.id}.part").write_bytes(b"half of an image")
        died(bench, guest)
        bench.driver.spawn(guest, bench.fetch)
        bench.wait_console(guest.uuid, READY)


def _after_the_disk(bench: Bench, guest) -> None:
    base = bench.driver._images.path(guest.image, bench.fetch)
    disk.create(bench.folder / "state/guests" / guest.uuid / "disk.qcow2", guest, base)


def _after_the_definition(bench: Bench, guest) -> None:
    _after_the_disk(bench, guest)
    bench.driver._define(guest)


def test_a_lost_definition_is_made_anew(libvirt_bench: Bench):
    bench = libvirt_bench
    guest = bench.running()
    bench.driver.power_off(guest.uuid)
    bench.driver._host.guest(guest.uuid).undefine()
    assert bench.power(guest) is PowerState.NOSTATE
    bench.driver.power_on(guest)
    assert "boots=2" in bench.wait_console(guest.uuid, READY, times=2)


def test_a_snapshot_that_died_half_way_leaves_the_guest_as_it_was(
    libvirt_bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench = libvirt_bench
    guest, target = bench.running(), bench.folder / "copy.qcow2"
    file = bench.folder / "state/guests" / guest.uuid / "disk.qcow2"
    before = _info(str(file))
    leftover = file.with_name("snapshot.copy")
    bench.driver._host.guest(guest.uuid).start_backup(snapshot.backup_xml(leftover))
    assert leftover.exists()  # and then the worker died
    bench.driver.snapshot(guest.uuid, target)
    assert not leftover.exists()

    def no_space(*_: object, **__: object) -> None:
        raise VirtError("the disk of the host broke")

    monkeypatch.setattr(qemu_img, "convert", no_space)
    with pytest.raises(VirtError, match="broke"):
        bench.driver.snapshot(guest.uuid, bench.folder / "other.qcow2")
    assert sorted(p.name for p in file.parent.iterdir()) == ["console.log", "disk.qcow2", "owner"]
    assert [line for line in before.splitlines() if "backing" in line] == [
        line for line in _info(str(file)).splitlines() if "backing" in line
    ]
    assert bench.power(guest) is PowerState.RUNNING


def test_guests_outlive_the_driver(libvirt_bench: Bench):
    from compute.virt import load

    guest = libvirt_bench.running()
    other = load("libvirt", uri=libvirt_bench.host.uri, state_dir=libvirt_bench.folder / "state")
    assert other.guests() == {guest.uuid: PowerState.RUNNING}
    other.close()
    assert libvirt_bench.power(guest) is PowerState.RUNNING


def test_guests_of_others_are_not_ours(libvirt_bench: Bench, tmp_path):
    from compute.virt import load

    libvirt_bench.running()
    stranger = load("libvirt", uri=libvirt_bench.host.uri, state_dir=tmp_path / "another")
    assert stranger.guests() == {}
    stranger.close()


def _info(file: str) -> str:
    command = ["qemu-img", "info", "-U", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def test_a_guest_in_rescue_has_its_own_disk_as_the_second_however_it_is_started(libvirt_bench: Bench):
    bench = libvirt_bench
    guest = bench.running()
    bench.driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
    for _ in range(2):
        assert disks_of(bench, guest) == ["vda rescue.qcow2", "vdb disk.qcow2"]
        bench.driver.power_off(guest.uuid)
        bench.driver.power_on(guest)

    bench.driver.unrescue(guest)
    bench.driver.power_on(guest)
    assert disks_of(bench, guest) == ["vda disk.qcow2"]
    assert not list(bench.folder.rglob("rescue.qcow2"))


@pytest.mark.parametrize("then", ["again", "back"])
def test_a_rescue_that_died_with_half_a_disk_is_carried_out_or_taken_back(then, libvirt_bench: Bench):
    bench = libvirt_bench
    guest = bench.running()
    bench.driver.power_off(guest.uuid)
    own = next(bench.folder.rglob("disk.qcow2"))
    for name in ("rescue.part", "rescue.qcow2"):
        own.with_name(name).write_bytes(b"half")
    if then == "again":
        bench.driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
        assert disks_of(bench, guest) == ["vda rescue.qcow2", "vdb disk.qcow2"]
    else:
        bench.driver.unrescue(guest)
        bench.driver.power_on(guest)
        assert disks_of(bench, guest) == ["vda disk.qcow2"]
    bench.wait_console(guest.uuid, READY, times=2)


def test_a_guest_that_was_in_rescue_and_is_built_anew_boots_its_own_disk(libvirt_bench: Bench):
    """As after an evacuation from a host that shared its disks."""
    bench = libvirt_bench
    guest = bench.running()
    bench.driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
    bench.driver.power_off(guest.uuid)
    bench.driver.spawn(guest, bench.fetch)
    assert disks_of(bench, guest) == ["vda disk.qcow2"]
    bench.wait_console(guest.uuid, READY, times=2)


def test_the_disk_of_a_sole_image_stands_alone(libvirt_bench: Bench, tmp_path):
    bench = libvirt_bench
    guest = bench.running()
    copy = tmp_path / "copy.qcow2"
    bench.driver.snapshot(guest.uuid, copy)
    image = bench.use(copy, "qcow2")
    bench.driver.destroy(guest.uuid)
    bench.driver.spawn(replace(guest, image=replace(image, sole=True)), bench.fetch)
    assert "boots=2" in bench.wait_console(guest.uuid, READY)
    bench.driver.power_off(guest.uuid)
    file = next(bench.folder.rglob("disk.qcow2"))
    assert qemu_img.virtual_size(file, "qcow2")  # which refuses a disk that names another
    assert not list(bench.folder.rglob(f"{image.id}*.qcow2"))
