"""Guests that are built off, and guests whose machine is lost; on real hosts with a disk for each, or one for both."""

from __future__ import annotations

import signal

from compute.virt.base import Guest, PowerState
from tests.virt.conftest import READY, Bench, Pair, wait_until


def test_a_guest_can_be_built_off_and_powered_on_later(bench: Bench):
    guest = bench.guest()
    bench.driver.spawn(guest, bench.fetch, on=False)
    bench.driver.spawn(guest, bench.fetch, on=False)
    assert (bench.driver.guests(), bench.power(guest)) == ({guest.uuid: PowerState.SHUTDOWN}, PowerState.SHUTDOWN)
    bench.driver.power_on(guest)
    bench.wait_console(guest.uuid, READY)


def lost(pair: Pair) -> Guest:
    """A guest that ran on a, whose machine is off."""
    guest = pair.a.running()
    if pair.a.host is not None:
        pair.a.host.stop(signal.SIGKILL)
        pair.a.host.destroy_all()
    return guest


def back(pair: Pair) -> None:
    """The machine boots: its guests are off."""
    if pair.a.host is not None:
        pair.a.host.start()
        wait_until(lambda: answers(pair.a), "its driver has found it again")


def answers(bench: Bench) -> bool:
    try:
        bench.driver.guests()
    except Exception:  # any kind: the daemon has just started
        return False
    return True


def is_shared(pair: Pair) -> bool:
    return (pair.a.folder / "shared").exists()


def test_a_guest_of_a_lost_machine_is_built_elsewhere_with_its_disk_where_hosts_share_it(pair: Pair):
    guest, shared = lost(pair), is_shared(pair)
    assert pair.b.driver.shares_disk(guest.uuid) is shared

    pair.b.driver.spawn(guest, pair.a.fetch)
    pair.b.driver.spawn(guest, pair.a.fetch)
    said = pair.b.wait_console(guest.uuid, READY, times=2 if shared else 1)
    assert ("boots=2" in said) is shared  # it counts on its disk
    assert pair.b.driver.shares_disk(guest.uuid) is False  # it is this host's own by now

    back(pair)
    pair.a.driver.destroy(guest.uuid)
    assert pair.a.driver.guests() == {}
    pair.b.driver.power_off(guest.uuid)
    pair.b.driver.power_on(guest)  # its disk is still there
    assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})


def test_a_host_that_lets_go_of_a_guest_leaves_a_shared_disk_to_the_next_one(pair: Pair):
    guest, shared = lost(pair), is_shared(pair)
    pair.b.driver.spawn(guest, pair.a.fetch, on=False)
    pair.b.driver.destroy(guest.uuid, disk=not shared)
    assert pair.b.driver.guests() == {}
    assert pair.b.driver.shares_disk(guest.uuid) is shared
    pair.b.driver.spawn(guest, pair.a.fetch)
    pair.b.wait_console(guest.uuid, READY)
    back(pair)
    pair.a.driver.destroy(guest.uuid)
    assert pair.places() == ({}, {guest.uuid: PowerState.RUNNING})
