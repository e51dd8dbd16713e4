"""What a verb does that comes late, from a worker that has lost its claim: docs/late-driver-calls.md, row by row.

Each test does what the worker that has the claim did meanwhile, then the late verb. What is not harmless is shown, too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from compute.virt.base import (
    Driver,
    Guest,
    GuestInvalidState,
    GuestNotFound,
    PowerState,
    VirtError,
)
from compute.virt.shutdown_timer import ShutdownTimer
from tests.virt.conftest import READY, Bench, Pair
from tests.virt.test_moving import go_on, moved

LATE = Path(tempfile.gettempdir(), f"late-{os.getpid()}.qcow2")
NOTHING = {
    "destroy": lambda driver, guest: driver.destroy(guest.uuid),
    "power_off": lambda driver, guest: driver.power_off(guest.uuid),
    "begin_shutdown": lambda driver, guest: driver.begin_shutdown(guest.uuid, 60, 10),
    "turn": lambda driver, guest: driver.turn(guest.uuid),
    "force_off": lambda driver, guest: driver.force_off(guest.uuid),
    "stop_timer": lambda driver, guest: driver.stop_timer(guest.uuid),
    "put_back off": lambda driver, guest: driver.put_back(guest, on=False),
    "unrescue": lambda driver, guest: driver.unrescue(guest),
    "cancel_pre_migrate": lambda driver, guest: driver.cancel_pre_migrate(guest.uuid),
    "cleanup_source": lambda driver, guest: driver.cleanup_source(guest.uuid),
}
REFUSED = {
    "power_on": lambda driver, guest: driver.power_on(guest),
    "put_back on": lambda driver, guest: driver.put_back(guest, on=True),
    "reboot_hard": lambda driver, guest: driver.reboot_hard(guest, "7"),
    "signal_shutdown": lambda driver, guest: driver.signal_shutdown(guest.uuid),
    "save_timer": lambda driver, guest: driver.save_timer(guest.uuid, ShutdownTimer.start(1.0, 60, 10)),
    "pause": lambda driver, guest: driver.pause(guest.uuid),
    "unpause": lambda driver, guest: driver.unpause(guest.uuid),
    "suspend": lambda driver, guest: driver.suspend(guest.uuid),
    "resume": lambda driver, guest: driver.resume(guest),
    "rescue": lambda driver, guest: driver.rescue(guest, guest.image, lambda _: None),
    "snapshot": lambda driver, guest: driver.snapshot(guest.uuid, LATE),
    "finish_migration": lambda driver, guest: driver.finish_migration(guest),
    "revert_migration": lambda driver, guest: driver.revert_migration(guest),
    "migrate_out": lambda driver, guest: driver.migrate_out(guest, driver.pre_migrate(guest), go_on),
}
# a driver verb that changes something, and is in one of the tables or has a test of its own below
OTHERS = {"spawn", "pre_migrate"}
READ_ONLY = {
    "facts", "nodes", "guests", "shutdown_preferences", "power_state", "shares_disk", "timer", "timers", "how_ended",
    "on_change",
    "wait_until_off", "rebooted", "console_output", "power_update_event", "is_locked", "check_can_migrate", "watch",
    "close",
}  # fmt: skip


def test_every_verb_is_in_the_table():
    verbs = {name for name, what in vars(Driver).items() if callable(what) and not name.startswith("_")}
    late = {name.split()[0] for name in (*NOTHING, *REFUSED)} | OTHERS
    assert verbs == late | READ_ONLY
    page = (Path(__file__).parents[2] / "docs/late-driver-calls.md").read_text()
    assert {verb for verb in late if f"`{verb}`" not in page} == set()


# -- after the guest is gone from this host


def test_after_a_delete_late_verbs_find_nothing_and_make_nothing(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.destroy(guest.uuid)
    for late in NOTHING.values():
        late(driver, guest)
    for name, late in REFUSED.items():
        with pytest.raises(GuestNotFound):
            print(name, late(driver, guest))  # noqa: T201 - which one it was
        with suppress(VirtError):
            driver.cancel_pre_migrate(guest.uuid)
    assert driver.guests() == {}


def test_after_it_moved_away_late_verbs_at_the_source_leave_it_alone(pair: Pair):
    guest = pair.a.running()
    moved(pair, guest)
    for late in (*NOTHING.values(), *REFUSED.values()):
        with suppress(VirtError):  # GuestNotFound; where the disk is shared, QEMU's lock
            late(pair.a.driver, guest)
        with suppress(VirtError):
            pair.a.driver.cancel_pre_migrate(guest.uuid)
        here, there = pair.places()
        assert here.get(guest.uuid) in (None, PowerState.SHUTDOWN, PowerState.CRASHED)
        assert there == {guest.uuid: PowerState.RUNNING}
    LATE.unlink(missing_ok=True)
    assert pair.b.driver.console_output(guest.uuid).count(READY) == 1
    pair.b.driver.power_off(guest.uuid)
    pair.b.driver.power_on(guest)
    assert "boots=2" in pair.b.wait_console(guest.uuid, READY, times=2)  # its disk is whole


# -- spawn: not harmless; the power sync turns off what it made (tests/flow/test_left_over.py)


def test_a_late_spawn_after_a_delete_builds_a_guest_that_has_to_be_turned_off(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.destroy(guest.uuid)
    driver.spawn(guest, bench.fetch)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}
    driver.power_off(guest.uuid)
    assert driver.guests() == {guest.uuid: PowerState.SHUTDOWN}


def test_a_late_spawn_after_it_moved_away_makes_a_second_guest_and_the_first_one_stays_whole(pair: Pair):
    guest = pair.a.running()
    moved(pair, guest)
    with suppress(VirtError):  # where the hosts share its disk, QEMU's lock keeps the second one off
        pair.a.driver.spawn(guest, pair.a.fetch)
    pair.a.driver.power_off(guest.uuid)
    assert pair.a.power(guest) in (PowerState.SHUTDOWN, PowerState.CRASHED)
    assert pair.places()[1] == {guest.uuid: PowerState.RUNNING}
    pair.b.driver.reboot_hard(guest)
    assert "boots=2" in pair.b.wait_console(guest.uuid, READY, times=2)  # its own disk


def test_a_late_spawn_of_a_guest_that_is_here_keeps_its_disk_and_at_most_powers_it_on(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.spawn(guest, bench.fetch)
    assert driver.console_output(guest.uuid).count(READY) == 1
    driver.power_off(guest.uuid)
    driver.spawn(guest, bench.fetch)
    assert "boots=2" in bench.wait_console(guest.uuid, READY, times=2)
    assert bench.fetches == 1


# -- power: at worst the guest is on or off, which the power sync sees


@pytest.mark.parametrize("late", ["power_on", "put_back on", "reboot_hard"])
def test_a_late_start_of_a_guest_that_was_stopped_boots_its_own_disk(bench: Bench, late: str):
    guest, driver = bench.running(), bench.driver
    driver.reboot_hard(guest, "7")
    bench.wait_console(guest.uuid, READY, times=2)
    driver.power_off(guest.uuid)
    REFUSED[late](driver, guest)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}
    assert "boots=3" in bench.wait_console(guest.uuid, READY, times=3)


@pytest.mark.parametrize("late", ["power_off", "force_off", "put_back off"])
def test_a_late_stop_of_a_guest_that_was_started_again_turns_it_off_and_keeps_its_disk(bench: Bench, late: str):
    guest, driver = bench.running(), bench.driver
    driver.power_off(guest.uuid)
    driver.power_on(guest)
    bench.wait_console(guest.uuid, READY, times=2)
    NOTHING[late](driver, guest)
    assert driver.guests() == {guest.uuid: PowerState.SHUTDOWN}
    driver.power_on(guest)
    assert "boots=3" in bench.wait_console(guest.uuid, READY, times=3)


def test_a_late_begin_of_a_shutdown_starts_a_clock_which_the_next_stop_joins(bench: Bench):
    guest = bench.running(bench.use(bench.image_file.with_name("micro-deaf.img"), properties=DEAF))
    driver = bench.driver
    driver.power_off(guest.uuid)
    driver.power_on(guest)
    late = driver.begin_shutdown(guest.uuid, 60, 30)
    assert driver.begin_shutdown(guest.uuid, 5, 1).begun == late.begun
    assert driver.begin_shutdown(guest.uuid, 0, 1).how == "forced"


DEAF = {"fake_shutdown_ignore": "1"}


def test_a_late_turn_of_a_clock_does_nothing_to_a_guest_that_booted_since(bench: Bench):
    guest = bench.running(bench.use(bench.image_file.with_name("micro-deaf.img"), properties=DEAF))
    driver = bench.driver
    old = driver.begin_shutdown(guest.uuid, 60, 30)
    driver.power_off(guest.uuid)
    driver.power_on(guest)
    assert driver.turn(guest.uuid) is None
    driver.stop_timer(guest.uuid)
    if bench.is_real:  # a fake guest believes the note
        driver.save_timer(guest.uuid, replace(old, deadline=old.begun))  # over long ago
    driver.turn(guest.uuid)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}


def test_a_late_stop_of_a_clock_ends_a_newer_one_and_who_waits_for_it_begins_anew(bench: Bench):
    guest = bench.running(bench.use(bench.image_file.with_name("micro-deaf.img"), properties=DEAF))
    driver = bench.driver
    driver.begin_shutdown(guest.uuid, 60, 30)
    driver.stop_timer(guest.uuid)
    assert driver.timer(guest.uuid).how == "left"
    assert driver.begin_shutdown(guest.uuid, 60, 30).runs


def test_a_late_signal_reaches_a_guest_that_was_started_again_as_a_power_button_does(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.power_off(guest.uuid)
    driver.power_on(guest)
    bench.wait_console(guest.uuid, READY, times=2)
    driver.signal_shutdown(guest.uuid)
    assert driver.wait_until_off(guest.uuid, 20)


def test_a_late_reboot_happens_once_by_its_mark_and_once_more_after_a_newer_one(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.reboot_hard(guest, "7")
    bench.wait_console(guest.uuid, READY, times=2)
    driver.reboot_hard(guest, "7")
    assert driver.console_output(guest.uuid).count(READY) == 2
    driver.reboot_hard(guest, "8")
    bench.wait_console(guest.uuid, READY, times=3)
    driver.reboot_hard(guest, "7")
    assert "boots=4" in bench.wait_console(guest.uuid, READY, times=4)


# -- memory: it needs a guest that is on


@pytest.mark.parametrize("late", ["pause", "unpause", "suspend", "resume"])
def test_a_late_verb_of_memory_does_nothing_to_a_guest_that_is_off(bench: Bench, late: str):
    guest, driver = bench.running(), bench.driver
    driver.power_off(guest.uuid)
    with pytest.raises(GuestInvalidState):
        REFUSED[late](driver, guest)
    assert driver.guests() == {guest.uuid: PowerState.SHUTDOWN}


@pytest.mark.parametrize(
    ("late", "becomes", "leads_back"),
    [("pause", PowerState.PAUSED, "unpause"), ("suspend", PowerState.SUSPENDED, "resume")],
)
def test_a_late_pause_or_suspend_of_a_guest_that_runs_again_loses_nothing(
    bench: Bench, late: str, becomes: PowerState, leads_back: str
):
    guest, driver = bench.running(), bench.driver
    REFUSED[late](driver, guest)
    REFUSED[leads_back](driver, guest)
    REFUSED[late](driver, guest)
    assert driver.guests() == {guest.uuid: becomes}
    REFUSED["power_on"](driver, guest)
    assert bench.power(guest) is PowerState.RUNNING
    assert driver.console_output(guest.uuid).count(READY) == 1


@pytest.mark.parametrize(("again", "late"), [("pause", "unpause"), ("suspend", "resume")])
def test_a_late_unpause_or_resume_of_a_guest_that_is_paused_or_suspended_again_lets_it_run(
    bench: Bench, again: str, late: str
):
    guest, driver = bench.running(), bench.driver
    REFUSED[again](driver, guest)
    REFUSED[late](driver, guest)
    REFUSED[again](driver, guest)
    REFUSED[late](driver, guest)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}
    assert driver.console_output(guest.uuid).count(READY) == 1


# -- disks


def test_a_late_snapshot_writes_its_file_anew_and_the_guest_goes_on(bench: Bench):
    guest, driver, target = bench.running(), bench.driver, bench.folder / "late.qcow2"
    driver.snapshot(guest.uuid, target)
    driver.snapshot(guest.uuid, target)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}
    assert driver.console_output(guest.uuid).count(READY) == 1


def test_a_late_rescue_boots_the_rescue_disk_again_and_a_hard_reboot_leads_out(bench: Bench):
    """Not harmless: the power state does not tell. The guest's own disk is only read and written by what it boots."""
    guest, driver = bench.running(), bench.driver
    rescue = bench.use(bench.image_file)
    driver.rescue(guest, rescue, bench.fetch)
    driver.unrescue(guest)
    driver.power_on(guest)
    driver.rescue(guest, rescue, bench.fetch)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}
    driver.reboot_hard(guest)
    driver.unrescue(guest)  # it is in no rescue
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}


def test_a_late_unrescue_leaves_a_guest_alone_that_is_in_no_rescue(bench: Bench):
    guest, driver = bench.running(), bench.driver
    driver.rescue(guest, bench.use(bench.image_file), bench.fetch)
    driver.unrescue(guest)
    driver.power_on(guest)
    driver.unrescue(guest)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}


def test_a_late_destroy_of_a_guest_that_was_built_here_again_destroys_it(bench: Bench):
    """Not harmless, and nothing repairs it: only the check of the token before the verb stands against it."""
    guest, driver = bench.running(), bench.driver
    driver.destroy(guest.uuid)
    driver.spawn(guest, bench.fetch)
    driver.destroy(guest.uuid)
    assert driver.guests() == {}


# -- from host to host


def test_late_verbs_of_the_destination_leave_a_guest_alone_that_has_settled(pair: Pair):
    guest = pair.a.running()
    moved(pair, guest)
    with pytest.raises(VirtError, match="is on this host already"):
        pair.b.driver.pre_migrate(guest)
    pair.b.driver.cancel_pre_migrate(guest.uuid)
    pair.b.driver.finish_migration(guest)
    pair.b.driver.cleanup_source(guest.uuid)
    pair.b.driver.revert_migration(guest)
    assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})
    assert pair.b.driver.console_output(guest.uuid).count(READY) == 1


def test_a_late_hand_over_after_the_move_was_taken_back_leaves_the_guest_where_it_is(pair: Pair):
    guest = pair.a.running()
    to = pair.b.driver.pre_migrate(guest)
    pair.a.driver.migrate_out(guest, to, go_on)
    pair.a.driver.revert_migration(guest)
    pair.b.driver.cancel_pre_migrate(guest.uuid)
    try:
        pair.a.driver.migrate_out(guest, to, go_on)
    except VirtError:  # its folder is not there any more
        assert pair.is_real
    else:  # a folder that hosts share is, and a fake host takes any parcel: not harmless, but it can be taken back
        pair.a.driver.revert_migration(guest)
    assert pair.places() == ({guest.uuid: PowerState.RUNNING}, {})


def test_late_verbs_of_the_source_leave_a_guest_alone_that_has_come_back(pair: Pair):
    guest = pair.a.running()
    moved(pair, guest)
    moved(Pair(pair.b, pair.a), guest)
    pair.a.driver.cleanup_source(guest.uuid)
    pair.a.driver.revert_migration(guest)
    assert pair.places() == ({guest.uuid: PowerState.RUNNING}, {})
    assert pair.a.driver.console_output(guest.uuid).count(READY) == 1


def test_a_late_expect_or_unexpect_of_a_guest_that_has_come_and_not_settled_costs_its_memory_alone(pair: Pair):
    """Not harmless: what came is thrown away. It is taken back by its source, and boots there."""
    late: list[Callable[[Guest], object]] = [
        pair.b.driver.pre_migrate, lambda guest: pair.b.driver.cancel_pre_migrate(guest.uuid),
    ]  # fmt: skip
    for verb in late:
        guest = pair.a.running()
        pair.a.driver.migrate_out(guest, pair.b.driver.pre_migrate(guest), go_on)
        verb(guest)
        with pytest.raises(GuestNotFound):
            pair.b.driver.finish_migration(guest)
        pair.a.driver.revert_migration(guest)
        assert pair.places() == ({guest.uuid: PowerState.RUNNING}, {})
        pair.b.driver.cancel_pre_migrate(guest.uuid)
        pair.a.driver.destroy(guest.uuid)
