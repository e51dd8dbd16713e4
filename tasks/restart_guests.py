"""When guests that went down with this host start again: once it takes work, after a start or a drain.

Not while guests are still being shut down. A machine that booted meanwhile has ended that shutdown.
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
    """Record which guests went off with the machine, and begin to start them again. In the targeted cell."""
    if me.driver is None:
        return
    if with_host(me.driver):
        guest_shutdown.call_off(me.host, "the host went down before its turn")
    sync(me)
    boot_marker.record_boot(settings.HOST_STATE)
    _due.set()
    look(me)


def with_host(driver: Driver) -> bool:
    """Return whether guests found off went off with the host: it booted, or its guests were stopped with it."""
    return not driver.guests_live_elsewhere and boot_marker.host_booted(settings.HOST_STATE)


def sync(me: worker.Worker) -> int:
    """Run the power sync. A periodic task, in the targeted cell."""
    return power_sync.sync(me.host, me.driver, booted=with_host(me.driver)) if me.driver is not None else 0


def when_open() -> None:
    """Note that the host takes work again, so that its guests may start."""
    _due.set()


def look(me: worker.Worker) -> int:
    """Start the guests if it is time; return how many. A periodic task, in the targeted cell."""
    if not _due.is_set() or not guest_shutdown.takes_work(me.host):
        return 0
    if guest_shutdown.going_on(me.host):  # the guests start in the next incarnation
        _due.clear()
    if guest_shutdown.has_open(me.host):
        return 0
    _due.clear()
    boot_marker.record_boot(settings.HOST_STATE)
    return guest_shutdown.start_guests(me.host)
