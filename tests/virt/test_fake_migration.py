"""A fake guest goes from host to host: it is in one place, whatever is done twice or dies in the middle."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from compute.virt.base import Command, Guest, GuestNotFound, Image, MigrationAborted, PowerState, Progress, VirtError
from compute.virt.fake.driver import FakeDriver
from compute.virt.fake.effects import Effect

Hosts = tuple[FakeDriver, FakeDriver]
GUEST = Guest("0" * 32, "instance-1", "a", 1, 512, 1, Image("i", "raw", 512))


def write_raw(target: Path) -> None:
    target.write_bytes(b"\0" * 512)


def go_on(_: Progress) -> Command:
    return Command.GO_ON


def answer(command: Command) -> Callable[[Progress], Command]:
    return lambda _: command


def effects(driver: FakeDriver) -> list[Effect]:
    return [one.effect for one in driver.effects(GUEST.uuid)]


@pytest.fixture(params=["in memory", "in files"])
def hosts(request, tmp_path) -> Hosts:
    """A host with the guest, and another one."""
    files = {"a": None, "b": None} if request.param == "in memory" else {n: tmp_path / f"{n}.sqlite3" for n in "ab"}
    a, b = (FakeDriver(name, state=file) for name, file in files.items())
    a.spawn(GUEST, write_raw)
    return a, b


def test_a_guest_goes_over_as_it_is(hosts: Hosts):
    a, b = hosts
    a.pause(GUEST.uuid)
    seen: list[Progress] = []

    def watch(progress: Progress) -> Command:
        seen.append(progress)
        return Command.GO_ON

    a.faults.delay("migrate_out", 0.5)
    a.migrate_out(GUEST, b.pre_migrate(GUEST), watch)
    assert (a.guests(), b.guests()) == ({}, {})
    b.finish_migration(GUEST)
    a.cleanup_source(GUEST.uuid)

    assert (a.guests(), b.guests()) == ({}, {GUEST.uuid: PowerState.PAUSED})
    assert (effects(a), effects(b)) == ([Effect.SPAWNED, Effect.PAUSED, Effect.MIGRATED_OUT], [Effect.MIGRATED_IN])
    assert "boots=1" in b.console_output(GUEST.uuid)
    left = [progress.memory_left for progress in seen]
    assert left == sorted(left, reverse=True)
    assert (seen[0].memory_total, left[-1]) == (512 << 20, 0)


def test_everything_may_be_asked_for_twice(hosts: Hosts):
    a, b = hosts
    to = [b.pre_migrate(GUEST), b.pre_migrate(GUEST)][1]
    for _ in range(2):
        a.migrate_out(GUEST, to, go_on)
    for _ in range(2):
        b.finish_migration(GUEST)
        b.cancel_pre_migrate(GUEST.uuid)  # it has settled, so it stays
        a.cleanup_source(GUEST.uuid)
    assert b.guests() == {GUEST.uuid: PowerState.RUNNING}
    assert (effects(a), effects(b)) == ([Effect.SPAWNED, Effect.MIGRATED_OUT], [Effect.MIGRATED_IN])


def test_a_guest_is_taken_back_before_it_has_settled(hosts: Hosts):
    a, b = hosts
    a.migrate_out(GUEST, b.pre_migrate(GUEST), go_on)
    for _ in range(2):
        a.revert_migration(GUEST)
        b.cancel_pre_migrate(GUEST.uuid)
    assert (a.guests(), b.guests()) == ({GUEST.uuid: PowerState.RUNNING}, {})
    with pytest.raises(GuestNotFound):
        b.finish_migration(GUEST)


def test_an_aborted_guest_stays_and_a_hurried_one_is_quick(hosts: Hosts):
    a, b = hosts
    a.faults.delay("migrate_out", 60)
    to = b.pre_migrate(GUEST)
    with pytest.raises(MigrationAborted):
        a.migrate_out(GUEST, to, answer(Command.ABORT))
    assert a.guests() == {GUEST.uuid: PowerState.RUNNING}
    a.migrate_out(GUEST, to, answer(Command.END_NOW))
    b.finish_migration(GUEST)
    assert b.guests() == {GUEST.uuid: PowerState.RUNNING}


def test_a_guest_that_lives_here_is_neither_expected_nor_forgotten(hosts: Hosts):
    a, _ = hosts
    with pytest.raises(VirtError, match="is on this host already"):
        a.pre_migrate(GUEST)
    a.cleanup_source(GUEST.uuid)
    assert a.guests() == {GUEST.uuid: PowerState.RUNNING}


def test_a_guest_may_come_back_to_a_host_that_has_not_cleaned_up(hosts: Hosts):
    a, b = hosts
    for here, there in ((a, b), (b, a)):
        here.migrate_out(GUEST, there.pre_migrate(GUEST), go_on)
        there.finish_migration(GUEST)
    a.cleanup_source(GUEST.uuid)
    assert (a.guests(), b.guests()) == ({GUEST.uuid: PowerState.RUNNING}, {})


def test_a_destroyed_guest_leaves_nothing_to_take_back(hosts: Hosts):
    a, b = hosts
    a.migrate_out(GUEST, b.pre_migrate(GUEST), go_on)
    a.destroy(GUEST.uuid)
    b.destroy(GUEST.uuid)
    with pytest.raises(GuestNotFound):
        a.revert_migration(GUEST)
    with pytest.raises(GuestNotFound):
        b.finish_migration(GUEST)


def test_a_worker_killed_in_the_middle_hands_over_in_its_next_life(tmp_path: Path):
    b = FakeDriver("b", state=tmp_path / "b.sqlite3")
    to = b.pre_migrate(GUEST)
    file = tmp_path / "a.sqlite3"
    first = multiprocessing.get_context("spawn").Process(target=hand_over_and_die, args=(file, dict(to)))
    first.start()
    first.join(60)
    assert first.exitcode == -signal.SIGKILL

    a = FakeDriver("a", state=file)
    assert (a.guests(), b.guests()) == ({GUEST.uuid: PowerState.RUNNING}, {})
    a.migrate_out(GUEST, to, go_on)
    b.finish_migration(GUEST)
    assert (effects(a), effects(b)) == ([Effect.SPAWNED, Effect.MIGRATED_OUT], [Effect.MIGRATED_IN])


def hand_over_and_die(file: Path, to: dict[str, str]) -> None:
    """In a process of its own, which does not come back."""
    driver = FakeDriver("a", state=file, faults="migrate_out.die=1")
    driver.spawn(GUEST, write_raw)
    driver.migrate_out(GUEST, to, go_on)
