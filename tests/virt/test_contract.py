"""What every driver does: one suite, run on the fake driver and on real QEMU guests."""

from __future__ import annotations

import os
import signal
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from compute.virt.base import (
    GuestInvalidState,
    GuestNotFound,
    ImageUnusable,
    PowerState,
    ShutdownPreference,
)
from compute.virt.image_check import write_empty_qcow2
from tests.virt.conftest import READY, Bench

STRANGER = "00000000-0000-4000-8000-000000000000"


def test_facts_say_what_the_host_offers(bench: Bench):
    facts = bench.driver.facts()
    assert facts.hypervisor_hostname
    assert facts.vcpus >= 1
    assert facts.memory_mb >= 1024
    assert facts.disk_gb >= 1
    if bench.is_real:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert facts.memory_mb == pages >> 20
    assert facts.hypervisor_version >= 1_000_000
    assert facts.cpu_info["arch"] == "x86_64"
    assert "snapshot" in facts.supports


def test_a_spawned_guest_runs_and_is_listed(bench: Bench):
    guest = bench.running()
    assert bench.power(guest) is PowerState.RUNNING
    assert bench.driver.guests() == {guest.uuid: PowerState.RUNNING}
    bench.wait_event(guest.uuid, PowerState.RUNNING)


def test_spawning_twice_is_spawning_once(bench: Bench):
    guest = bench.running()
    bench.driver.spawn(guest, bench.fetch)
    assert bench.fetches == 1
    assert bench.driver.console_output(guest.uuid).count(READY) == 1


def test_destroying_twice_leaves_nothing(bench: Bench):
    guest = bench.running()
    bench.driver.destroy(guest.uuid)
    bench.driver.destroy(guest.uuid)
    assert bench.power(guest) is PowerState.NOSTATE
    assert bench.driver.guests() == {}
    with pytest.raises(GuestNotFound):
        bench.driver.console_output(guest.uuid)


def test_a_destroyed_guest_can_be_spawned_again(bench: Bench):
    guest = bench.running()
    bench.driver.destroy(guest.uuid)
    bench.driver.spawn(guest, bench.fetch)
    assert "boots=1" in bench.wait_console(guest.uuid, READY)
    assert bench.fetches == 1


def test_the_plug_is_pulled_and_put_back(bench: Bench):
    guest = bench.running()
    for _ in range(2):
        bench.driver.power_off(guest.uuid)
    assert bench.power(guest) is PowerState.SHUTDOWN
    for _ in range(2):
        bench.driver.power_on(guest)
    assert bench.power(guest) is PowerState.RUNNING
    assert "boots=2" in bench.wait_console(guest.uuid, READY, times=2)


def test_a_guest_obeys_its_power_button(bench: Bench):
    guest = bench.running()
    assert bench.driver.wait_until_off(guest.uuid, 0.05) is False
    assert bench.driver.signal_shutdown(guest.uuid) == "acpi"
    assert bench.driver.wait_until_off(guest.uuid, 20) is True
    assert bench.power(guest) is PowerState.SHUTDOWN
    assert bench.wait_event(guest.uuid, PowerState.SHUTDOWN).detail == "shutdown"
    with pytest.raises(GuestInvalidState):
        bench.driver.signal_shutdown(guest.uuid)


def test_waiting_for_a_guest_that_is_off_or_unknown_ends_at_once(bench: Bench):
    guest = bench.running()
    bench.driver.power_off(guest.uuid)
    assert bench.driver.wait_until_off(guest.uuid, 0) is True
    assert bench.driver.wait_until_off(STRANGER, 0) is True


def test_a_hard_reboot_works_from_every_power_state(bench: Bench):
    guest, driver = bench.running(), bench.driver
    states = [
        lambda: None,
        lambda: driver.pause(guest.uuid),
        lambda: driver.suspend(guest.uuid),
        lambda: driver.power_off(guest.uuid),
    ]
    for boots, reach in enumerate(states, start=2):
        reach()
        driver.reboot_hard(guest)
        assert bench.power(guest) is PowerState.RUNNING
        assert f"boots={boots}" in bench.wait_console(guest.uuid, READY, times=boots)


def test_a_reboot_asked_again_by_its_mark_happens_once(bench: Bench):
    guest, driver = bench.running(), bench.driver
    assert not driver.rebooted(guest.uuid, "7")
    for _ in range(2):
        driver.reboot_hard(guest, "7")
        assert driver.rebooted(guest.uuid, "7")
    assert "boots=2" in bench.wait_console(guest.uuid, READY, times=2)
    driver.reboot_hard(guest, "8")
    assert (driver.rebooted(guest.uuid, "7"), driver.rebooted(guest.uuid, "8")) == (False, True)
    said = bench.wait_console(guest.uuid, READY, times=3)
    assert said.count(READY) == 3


def test_a_reboot_that_left_its_guest_off_is_not_done_and_is_carried_on(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.reboot_hard(guest, "7")
    bench.wait_console(guest.uuid, READY, times=2)
    driver.power_off(guest.uuid)
    assert not driver.rebooted(guest.uuid, "7")
    driver.reboot_hard(guest, "7")
    assert driver.rebooted(guest.uuid, "7")
    assert "boots=3" in bench.wait_console(guest.uuid, READY, times=3)


def test_the_mark_of_a_reboot_outlives_a_definition_made_anew(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.reboot_hard(guest, "7")
    driver.power_off(guest.uuid)
    driver.power_on(guest)
    assert driver.rebooted(guest.uuid, "7")
    driver.reboot_hard(guest)
    assert not driver.rebooted(guest.uuid, "7")
    assert not driver.rebooted(STRANGER, "7")


def test_pause_freezes_and_unpause_lets_go(bench: Bench):
    guest = bench.running()
    for _ in range(2):
        bench.driver.pause(guest.uuid)
    assert bench.power(guest) is PowerState.PAUSED
    with pytest.raises(GuestInvalidState):
        bench.driver.signal_shutdown(guest.uuid)
    for _ in range(2):
        bench.driver.unpause(guest.uuid)
    assert bench.power(guest) is PowerState.RUNNING
    assert bench.driver.console_output(guest.uuid).count(READY) == 1


def test_suspend_keeps_the_memory_and_resume_goes_on(bench: Bench):
    guest = bench.running()
    for _ in range(2):
        bench.driver.suspend(guest.uuid)
    assert bench.power(guest) is PowerState.SUSPENDED
    assert bench.driver.guests() == {guest.uuid: PowerState.SUSPENDED}
    assert bench.driver.wait_until_off(guest.uuid, 0) is True
    for _ in range(2):
        bench.driver.resume(guest)
    assert bench.power(guest) is PowerState.RUNNING
    assert bench.driver.console_output(guest.uuid).count(READY) == 1


def test_powering_on_a_suspended_guest_goes_on_where_it_was(bench: Bench):
    guest = bench.running()
    bench.driver.suspend(guest.uuid)
    bench.driver.power_on(guest)
    assert bench.power(guest) is PowerState.RUNNING
    assert bench.driver.console_output(guest.uuid).count(READY) == 1


def test_a_suspended_guest_can_be_destroyed(bench: Bench):
    guest = bench.running()
    bench.driver.suspend(guest.uuid)
    bench.driver.destroy(guest.uuid)
    assert bench.power(guest) is PowerState.NOSTATE


@pytest.mark.parametrize("verb", ["pause", "unpause", "suspend", "signal_shutdown"])
def test_a_guest_that_is_off_refuses(bench: Bench, verb: str):
    guest = bench.running()
    bench.driver.power_off(guest.uuid)
    with pytest.raises(GuestInvalidState):
        getattr(bench.driver, verb)(guest.uuid)
    with pytest.raises(GuestInvalidState):
        bench.driver.resume(guest)
    assert bench.power(guest) is PowerState.SHUTDOWN


def test_unknown_guests_are_unknown(bench: Bench):
    driver, target = bench.driver, bench.folder / "x.qcow2"
    verbs = ("pause", "unpause", "suspend", "signal_shutdown", "console_output")
    calls = [lambda verb=verb: getattr(driver, verb)(STRANGER) for verb in verbs]
    stranger = bench.guest()
    calls += [
        lambda: driver.snapshot(STRANGER, target),
        lambda: driver.resume(stranger),
        lambda: driver.power_on(stranger),
        lambda: driver.reboot_hard(stranger),
    ]
    for call in calls:
        with pytest.raises(GuestNotFound):
            call()
    driver.power_off(STRANGER)
    driver.destroy(STRANGER)
    assert driver.power_state(STRANGER) is PowerState.NOSTATE
    assert not target.exists()


def test_the_console_is_read(bench: Bench):
    guest = bench.running()
    said = bench.driver.console_output(guest.uuid)
    assert said.splitlines()[-2].startswith("STILLWATER BOOT image=")
    assert said.endswith(f"{READY}\n")


def test_a_snapshot_boots_again_and_the_guest_keeps_running(bench: Bench):
    guest, target = bench.running(), bench.folder / "snapshot.qcow2"
    for _ in range(2):  # run again it writes anew
        image = bench.driver.snapshot(guest.uuid, target)
    assert (image.disk_format, image.size) == ("qcow2", target.stat().st_size)
    assert image.virtual_size == 1 << 20
    assert bench.power(guest) is PowerState.RUNNING
    copy = bench.running(bench.use(target, "qcow2"))
    said = bench.driver.console_output(copy.uuid)
    if bench.is_real:  # the boot counter on the disk went with it
        assert "boots=2" in said
    assert sorted(p.name for p in bench.folder.iterdir() if p.name != "state") == [target.name]


def test_a_guest_that_is_off_can_be_copied(bench: Bench):
    guest, target = bench.running(), bench.folder / "snapshot.qcow2"
    bench.driver.power_off(guest.uuid)
    assert bench.driver.snapshot(guest.uuid, target).virtual_size == 1 << 20
    assert bench.power(guest) is PowerState.SHUTDOWN
    bench.running(bench.use(target, "qcow2"))


def test_parallel_spawns_of_one_image_fetch_it_once(bench: Bench):
    image = bench.use(bench.image_file)
    guests = [bench.guest(image) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda guest: bench.driver.spawn(guest, bench.fetch), guests))
    assert bench.fetches == 1
    assert set(bench.driver.guests().values()) == {PowerState.RUNNING}
    assert len(bench.driver.guests()) == 4


def test_a_killed_guest_is_crashed_and_boots_again(bench: Bench):
    guest = bench.running()
    if bench.is_real:
        pidfile = bench.host.directory / "run/qemu" / f"{guest.name}.pid"
        os.kill(int(pidfile.read_text()), signal.SIGKILL)
    else:
        bench.driver.crash(guest.uuid)
    assert bench.wait_event(guest.uuid, PowerState.CRASHED).detail == "crashed"
    assert bench.power(guest) is PowerState.CRASHED
    assert bench.driver.guests() == {guest.uuid: PowerState.CRASHED}
    bench.driver.power_on(guest)
    assert "boots=2" in bench.wait_console(guest.uuid, READY, times=2)


def _qcow2(bench: Bench, offset: int, packed: bytes, version: int = 3):
    """A qcow2 file with something written into its header."""
    file = bench.folder / f"{uuid.uuid4()}.qcow2"
    write_empty_qcow2(file, 1 << 20)
    content = bytearray(file.read_bytes())
    struct.pack_into(">I", content, 4, version)
    struct.pack_into(">I", content, 100, 104)
    content[offset : offset + len(packed)] = packed
    file.write_bytes(content)
    return file


def test_an_image_that_would_read_the_hosts_files_is_refused(bench: Bench):
    secret = b"/etc/shadow"
    with_backing = _qcow2(bench, 8, struct.pack(">QI", 512, len(secret)), version=2)
    with_data_file = _qcow2(bench, 72, struct.pack(">Q", 1 << 2))
    for file in (with_backing, with_data_file):
        guest = bench.guest(bench.use(file, "qcow2"))
        with pytest.raises(ImageUnusable):
            bench.driver.spawn(guest, bench.fetch)
        assert bench.power(guest) is PowerState.NOSTATE
    assert bench.driver.guests() == {}


def test_an_image_that_is_not_what_its_record_says_is_refused(bench: Bench):
    micro = bench.image_file
    good = bench.folder / "good.qcow2"
    write_empty_qcow2(good, 1 << 20)
    wrong = [
        bench.use(micro, checksum="0" * 32),
        bench.use(micro, size=17),
        bench.use(micro, "qcow2"),
        bench.use(micro, "vmdk"),
    ]
    for image in wrong:
        with pytest.raises(ImageUnusable):
            bench.driver.spawn(bench.guest(image), bench.fetch)
    qcow2_as_raw = bench.use(good, "raw")
    with pytest.raises(ImageUnusable):
        bench.driver.spawn(bench.guest(qcow2_as_raw), bench.fetch)


def test_an_image_that_could_not_be_fetched_may_be_tried_again(bench: Bench):
    guest = bench.guest()

    def broken(target):
        target.write_bytes(b"half of")
        raise ImageUnusable("the image store hung up")

    with pytest.raises(ImageUnusable, match="hung up"):
        bench.driver.spawn(guest, broken)
    bench.driver.spawn(guest, bench.fetch)
    assert bench.power(guest) is PowerState.RUNNING


def test_a_guest_in_rescue_boots_another_disk_and_comes_out_with_its_own(bench: Bench):
    guest = bench.running()
    other = bench.use(bench.image_file)
    bench.driver.power_off(guest.uuid)
    for _ in range(2):  # again, it is in rescue already
        bench.driver.rescue(guest, other, bench.fetch)
    assert bench.power(guest) is PowerState.RUNNING
    bench.wait_console(guest.uuid, READY, times=2)

    for _ in range(2):
        bench.driver.unrescue(guest)
    assert bench.power(guest) is PowerState.SHUTDOWN
    bench.driver.power_on(guest)
    assert bench.wait_console(guest.uuid, READY, times=3).count("BOOT") == 3


def test_a_guest_in_rescue_stays_in_it_when_it_is_powered_on_again(bench: Bench):
    guest = bench.running()
    bench.driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
    bench.wait_console(guest.uuid, READY, times=2)
    bench.driver.power_off(guest.uuid)
    bench.driver.power_on(guest)
    bench.wait_console(guest.uuid, READY, times=3)
    bench.driver.unrescue(guest)
    assert bench.power(guest) is PowerState.SHUTDOWN


def test_a_hard_reboot_leads_out_of_rescue(bench: Bench):
    guest = bench.running()
    bench.driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
    bench.wait_console(guest.uuid, READY, times=2)
    bench.driver.reboot_hard(guest)
    bench.wait_console(guest.uuid, READY, times=3)
    bench.driver.unrescue(guest)  # it is out, so this changes nothing
    assert bench.power(guest) is PowerState.RUNNING


def test_a_rescue_whose_image_does_not_come_leaves_the_guest_as_it_was(bench: Bench):
    guest = bench.running()

    def fetch(_):
        raise ImageUnusable("gone")

    with pytest.raises(ImageUnusable):
        bench.driver.rescue(guest, bench.use(bench.image_file), fetch)
    bench.driver.unrescue(guest)
    assert bench.power(guest) is PowerState.RUNNING


def test_who_is_not_here_is_not_rescued(bench: Bench):
    guest = bench.guest()
    with pytest.raises(GuestNotFound):
        bench.driver.rescue(guest, guest.image, bench.fetch)
    bench.driver.unrescue(guest)
    assert bench.power(guest) is PowerState.NOSTATE


def test_the_sole_image_of_a_guest_is_kept_by_no_host(bench: Bench, tmp_path):
    guest = bench.running()
    copy = tmp_path / "copy.qcow2"
    bench.driver.snapshot(guest.uuid, copy)
    image = bench.use(copy, "qcow2")
    bench.driver.destroy(guest.uuid)
    fetches = bench.fetches
    back = replace(guest, image=replace(image, sole=True))
    for turn in (1, 2):
        bench.driver.spawn(back, bench.fetch)
        bench.wait_console(guest.uuid, READY)
        assert bench.fetches == fetches + turn
        bench.driver.destroy(guest.uuid)


def test_how_a_guest_wants_to_be_shut_down_is_known_to_its_host_while_it_is_on(bench: Bench):
    driver = bench.driver
    hasty = replace(bench.guest(), shutdown_timeout=0, shutdown_priority=-3)
    driver.spawn(hasty, bench.fetch)
    plain = replace(bench.guest(hasty.image))
    driver.spawn(plain, bench.fetch)
    driver.pause(plain.uuid)
    name = 'a "guest" <&>'
    assert driver.shutdown_preferences() == {
        hasty.uuid: ShutdownPreference(name, 0, -3), plain.uuid: ShutdownPreference(name, None, 0),
    }  # fmt: skip

    driver.power_off(plain.uuid)
    assert driver.shutdown_preferences() == {hasty.uuid: ShutdownPreference(name, 0, -3)}
    for start in (driver.power_on, driver.reboot_hard):
        driver.power_off(plain.uuid)
        start(replace(plain, display_name="renamed", shutdown_timeout=7))
        assert driver.shutdown_preferences()[plain.uuid] == ShutdownPreference("renamed", 7, 0)
