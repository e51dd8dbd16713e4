"""Shutting a host's guests down without its worker: that is dead, or its cell's database is away.

Through the hypervisor, on the host's own machine, with its own settings. Guests that are being shut down already get
the rest of their grace period, and the host's next start starts those that are recorded as running.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing, suppress
from dataclasses import replace

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
    preferences = sorted(driver.shutdown_preferences().items(), key=lambda item: item[1].priority)
    guests = {uuid: GuestShutdown(uuid, wanted.name, "", wanted.priority, "waiting") for uuid, wanted in preferences}
    for priority in sorted({wanted.priority for _, wanted in preferences}):
        group = {uuid: wanted for uuid, wanted in preferences if wanted.priority == priority}
        for _ in _shut_down_group(driver, group, guests, until, command):
            one = replace(one, guests=tuple(guests.values()))
            command.output.show([one])
    if not guests:
        command.output.show([one])
        return Outcome(DONE, f"{one.name}: no guest is on.")
    code = DONE if all(line.state == "off" for line in one.guests) else UNFINISHED
    return Outcome(code, guests_sentence(one, time.time() - began), one)


def _shut_down_group(
    driver: Driver, group: dict[str, ShutdownPreference], guests: dict[str, GuestShutdown], until: float | None,
    command: HostCommand,
) -> Iterator[None]:  # fmt: skip
    """Shut down the guests of one priority; yield whenever `guests` is up to date."""
    pool = ThreadPoolExecutor(command.parallel or AT_ONCE, "shutdown")
    try:
        futures = {pool.submit(_power_off, driver, wanted, uuid, until): uuid for uuid, wanted in group.items()}
        while futures:
            with suppress(NotYet):
                for future in as_completed(list(futures), timeout=command.interval):
                    uuid = futures.pop(future)
                    guests[uuid] = _ended(guests[uuid], future)
            for uuid in futures.values():
                guests[uuid] = _running(guests[uuid], driver)
            yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _power_off(driver: Driver, wanted: ShutdownPreference, uuid: str, until: float | None) -> ShutdownTimer | None:
    """Shut a guest down with its own grace period, cut at the deadline of all."""
    seconds = float(settings.SHUTDOWN_TIMEOUT if wanted.seconds is None else wanted.seconds)
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
