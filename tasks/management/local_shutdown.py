"""Shutting a host's guests down without its worker: that is dead, or its cell's database is away.

Through the hypervisor, on the host's own machine, with its own settings. Guests that are being shut down already get
the rest of their grace period, and the host's next start starts those that are recorded as running.
"""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby

from django.conf import settings

from compute.hosts.guest_shutdown import AT_ONCE, GuestShutdown
from compute.virt.base import Driver, ShutdownPreference, VirtError
from compute.virt.shutdown_timer import ShutdownTimer
from tasks import boot_marker, worker
from tasks.management.options import HostCommand
from tasks.management.outcome import DONE, INTERRUPTED, SILENT, UNFINISHED, CommandRefused, Outcome
from tasks.management.snapshot import ServiceSnapshot
from tasks.management.wait import guests_sentence

SOON = 1.0  # seconds


def shut_down(command: HostCommand, one: ServiceSnapshot, why: str) -> Outcome:
    """Shut down all guests that are on, the lowest priority first, `--parallel` at a time.

    `why`: the reason that the host does not do it. Raises CommandRefused when interrupted.
    """
    name, node = one.name, one.location.node
    if settings.ROLE != "host" or name != settings.HOST:  # these are not the settings of that very host
        file = node.env_file if node else f"the env file of {name}"
        return Outcome(SILENT, f"{name}: {why}, and its guests were not shut down. On its machine, with its own "
                       f"settings: STILLWATER_ENV_FILE={file} manage.py host shutdown-guests {name}")  # fmt: skip
    command.output.say(f"{name}: {why}; its guests are shut down by the hypervisor itself.")
    boot_marker.expect_boot(settings.HOST_STATE)
    try:
        with closing(worker.open_driver()) as driver:
            return _shut_down(command, one, driver)
    except VirtError as error:
        return Outcome(SILENT, f"{name}: the hypervisor does not answer ({error}). Run this again when it does.")
    except KeyboardInterrupt:
        raise CommandRefused(
            "Interrupted. The guests get no more signals. Each keeps its deadline, which counts when this is run "
            "again, or the host is started.", INTERRUPTED,
        ) from None  # fmt: skip


def _shut_down(command: HostCommand, one: ServiceSnapshot, driver: Driver) -> Outcome:
    began = time.time()
    until = began + command.seconds if command.seconds is not None else None
    preferences = driver.shutdown_preferences()
    guests = {uuid: GuestShutdown(uuid, preference.name, "", preference.priority, "waiting")
              for uuid, preference in sorted(preferences.items(), key=lambda item: item[1].priority)}  # fmt: skip
    pool = ThreadPoolExecutor(command.parallel or AT_ONCE, "shutdown")
    try:
        for _, group in groupby(list(guests.values()), key=lambda line: line.priority):
            uuids = [line.server_id for line in group]
            pending = {pool.submit(_power_off, driver, preferences[uuid], uuid, until): uuid for uuid in uuids}
            while pending:
                done, _ = wait(pending, command.interval, FIRST_COMPLETED)
                for future, uuid in pending.items():
                    guests[uuid] = _ended(guests[uuid], future) if future in done else _running(guests[uuid], driver)
                pending = {future: uuid for future, uuid in pending.items() if future not in done}
                one = replace(one, guests=tuple(guests.values()))
                command.output.show([one])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if not guests:
        command.output.show([one])
        return Outcome(DONE, f"{one.name}: no guest is on.")
    code = DONE if all(line.state == "off" for line in one.guests) else UNFINISHED
    return Outcome(code, guests_sentence(one, time.time() - began), one)


def _power_off(driver: Driver, preference: ShutdownPreference, uuid: str, until: float | None) -> ShutdownTimer | None:
    """Shut a guest down with its own grace period, cut at the deadline of all."""
    seconds = float(settings.SHUTDOWN_TIMEOUT if preference.seconds is None else preference.seconds)
    if until is not None:
        seconds = min(seconds, max(0.0, until - time.time()))
    timer = driver.begin_shutdown(uuid, seconds, settings.SHUTDOWN_RETRY_INTERVAL)
    while timer is not None and timer.runs:
        due = timer.due if until is None else min(timer.due, until)
        driver.wait_until_off(uuid, max(0.1, due - time.time()))
        late = until is not None and time.time() >= until and timer.deadline > until + SOON  # another process's timer
        timer = driver.begin_shutdown(uuid, 0, timer.interval) if late else driver.turn(uuid)
    return timer


def _ended(line: GuestShutdown, future: Future[ShutdownTimer | None]) -> GuestShutdown:
    try:
        timer = future.result()
    except VirtError as error:
        return replace(line, state="failed", words=str(error), seconds_left=None)
    words = timer.words() if timer is not None else "was off already"
    return replace(line, state="off", words=words, seconds_left=None, signals=timer.signals if timer else 0)


def _running(line: GuestShutdown, driver: Driver) -> GuestShutdown:
    """Return the line with what the shutdown timer says; as it was when the hypervisor does not answer."""
    timer = None
    with suppress(VirtError):
        timer = driver.timer(line.server_id)
    if timer is None or not timer.runs:
        return line
    left = timer.left(time.time())
    return replace(line, state="shutting down", words=timer.words(), seconds_left=left, signals=timer.signals)
