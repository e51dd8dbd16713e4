"""When the guests that went down with this host come back: once it takes work, after a start or a drain.

Not while they are still being shut down. What is left of that by a machine that booted meanwhile is over.
"""

from __future__ import annotations

import threading

from django.conf import settings

from compute.hosts import guest_shutdown
from compute.power import sync as power_sync
from compute.virt.base import Driver
from tasks import boot_marker, worker

_due = threading.Event()


def after_start(me: worker.Worker) -> None:
    """What went off with the machine is on record, and comes back. In the targeted cell."""
    if me.driver is None:
        return
    if with_host(me.driver):
        guest_shutdown.call_off(me.host, "the host went down before its turn")
    sync(me)
    boot_marker.record_boot(settings.HOST_STATE)
    _due.set()
    look(me)


def with_host(driver: Driver) -> bool:
    """Whether who is found off went off with the host: the machine booted, or somebody stops its guests."""
    return not driver.guests_live_elsewhere and boot_marker.host_booted(settings.HOST_STATE)


def sync(me: worker.Worker) -> int:
    """By the clock, in the targeted cell."""
    return power_sync.sync(me.host, me.driver, booted=with_host(me.driver)) if me.driver is not None else 0


def when_open() -> None:
    """The host takes work again."""
    _due.set()


def look(me: worker.Worker) -> int:
    """Begin to bring them back, if it is time; how many there are. By the clock, in the targeted cell."""
    if not _due.is_set() or not guest_shutdown.takes_work(me.host):
        return 0
    if guest_shutdown.going_on(me.host):  # they come back in the next life
        _due.clear()
    if guest_shutdown.has_open(me.host):
        return 0
    _due.clear()
    boot_marker.record_boot(settings.HOST_STATE)
    return guest_shutdown.start_guests(me.host)
