"""Shutting a host's guests down without its worker: that is dead, or its cell's database is away.

Through the hypervisor, on the host's own machine, with its own settings. Guests that are being shut down already get
the rest of their grace period, and the host's next start starts those that are recorded as running.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import replace

from django.conf import settings

from compute.hosts.guest_shutdown import AT_ONCE, GuestShutdown
from compute.virt.base import Driver, ShutdownPreference, VirtError
from compute.virt.shutdown_timer import ShutdownTimer
from tasks import boot_marker, worker, worker_process
from tasks.management import guest_table
from tasks.management.options import CommandRefused, HostCommand
from tasks.management.output import Outcome
from tasks.management.snapshot import ServiceLocation, ServiceSnapshot
from tasks.management.wait import DONE, INTERRUPTED, SILENT, UNFINISHED

SOON = 1.0  # seconds
Running = dict[str, GuestShutdown]


def is_ours(place: ServiceLocation) -> bool:
    """Return whether these are the settings of that very host."""
    return bool(settings.ROLE == "host" and place.name == settings.HOST)


def is_dead(one: ServiceSnapshot) -> bool:
    """Return whether the host's worker is dead: by its process where that is known, else by its heartbeat."""
    if one.place.node is not None:
        return one.place.pid is None and worker_process.pid_under_other_supervisor(one.place.node) is None
    return one.service is None or not one.service.beats


def shut_down(asked: HostCommand, one: ServiceSnapshot, why: str) -> Outcome:
    """Shut down all guests that are on, the lowest priority first, `--parallel` at a time.

    `why`: the reason that the host was not asked. Raises CommandRefused when interrupted.
    """
    name = one.place.name
    if not is_ours(one.place):
        file = one.place.node.env_file if one.place.node else f"the env file of {name}"
        return Outcome(name, SILENT, f"{name}: {why}, and its guests were not shut down. On its machine, with its own "
                   f"settings: STILLWATER_ENV_FILE={file} manage.py host shutdown-guests {name}")  # fmt: skip
    asked.screen.say(f"{name}: {why}; its guests are shut down by the hypervisor itself.")
    boot_marker.expect_boot(settings.HOST_STATE)
    try:
        driver = worker.open_driver()
        try:
            return _shut_down(asked, one, driver)
        finally:
            driver.close()
    except VirtError as error:
        return Outcome(name, SILENT, f"{name}: the hypervisor does not answer ({error}). Run this again when it does.")
    except KeyboardInterrupt:
        raise CommandRefused(
            "Interrupted. Nobody signals the guests any more; each keeps its deadline, and goes on with it when this "
            "is run again, or the host is started.", INTERRUPTED,
        ) from None  # fmt: skip


def _shut_down(asked: HostCommand, one: ServiceSnapshot, driver: Driver) -> Outcome:
    began = time.time()
    until = began + asked.seconds if asked.seconds is not None else None
    shutdown_preferences = driver.shutdown_preferences()
    lines = {uuid: _line(uuid, wish) for uuid, wish in shutdown_preferences.items()}
    for rank in sorted({wish.priority for wish in shutdown_preferences.values()}):
        group = {uuid: wish for uuid, wish in shutdown_preferences.items() if wish.priority == rank}
        for _ in _group(driver, group, lines, until, asked):
            asked.screen.show([replace(one, guests=_sorted(lines))])
    one = replace(one, guests=_sorted(lines))
    asked.screen.show([one])
    if not lines:
        return Outcome(one.place.name, DONE, f"{one.place.name}: no guest is on.")
    code = DONE if all(line.state == "off" for line in one.guests) else UNFINISHED
    sentence = guest_table.ended(one.place.name, one.guests, time.time() - began)
    return Outcome(one.place.name, code, sentence, one)


def _group(
    driver: Driver, group: dict[str, ShutdownPreference], lines: Running, until: float | None, asked: HostCommand
) -> Iterator[None]:
    """Shut down the guests of one priority; yield after every look."""
    pool = ThreadPoolExecutor(asked.parallel or AT_ONCE, "shutdown_preference")
    try:
        futures = {pool.submit(_power_off, driver, wish, uuid, until): uuid for uuid, wish in group.items()}
        while futures:
            with suppress(NotYet):
                for future in as_completed(list(futures), timeout=asked.interval):
                    uuid = futures.pop(future)
                    lines[uuid] = _over(lines[uuid], future)
            for uuid in futures.values():
                lines[uuid] = _now(lines[uuid], driver)
            yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _power_off(driver: Driver, wish: ShutdownPreference, uuid: str, until: float | None) -> ShutdownTimer | None:
    """Shut a guest down with its own grace period, cut at the deadline of all."""
    seconds = float(settings.SHUTDOWN_TIMEOUT if wish.seconds is None else wish.seconds)
    if until is not None:
        seconds = min(seconds, max(0.0, until - time.time()))
    timer = driver.begin_shutdown(uuid, seconds, settings.SHUTDOWN_RETRY_INTERVAL)
    while timer is not None and timer.runs:
        due = timer.due if until is None else min(timer.due, until)
        driver.wait_until_off(uuid, max(0.1, due - time.time()))
        late = until is not None and time.time() >= until and timer.deadline > until + SOON  # another process's timer
        timer = driver.begin_shutdown(uuid, 0, timer.interval) if late else driver.turn(uuid)
    return timer


def _line(uuid: str, wish: ShutdownPreference) -> GuestShutdown:
    return GuestShutdown(uuid, wish.name, "", wish.priority, "waiting")


def _over(line: GuestShutdown, future: Future[ShutdownTimer | None]) -> GuestShutdown:
    try:
        timer = future.result()
    except VirtError as error:
        return replace(line, state="failed", words=str(error), seconds_left=None)
    words = timer.words() if timer is not None else "was off already"
    return replace(line, state="off", words=words, seconds_left=None, signals=timer.signals if timer else 0)


def _now(line: GuestShutdown, driver: Driver) -> GuestShutdown:
    """Return the line with what the shutdown timer says; as it was when the hypervisor does not answer."""
    timer = None
    with suppress(VirtError):
        timer = driver.timer(line.server_id)
    if timer is None or not timer.runs:
        return line
    left = timer.left(time.time())
    return replace(line, state=guest_table.SHUTS_DOWN, words=timer.words(), seconds_left=left, signals=timer.signals)


def _sorted(lines: Running) -> tuple[GuestShutdown, ...]:
    return tuple(sorted(lines.values(), key=lambda line: line.priority))
