"""The shutdown watcher: turns the shutdown timers of one host's guests, each when it is due.

One thread knows when each timer is due; up to HANDS short-lived threads turn them. No thread waits for a guest: fifty
guests that take a minute each cost fifty entries in a dict.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from compute.virt.base import Driver, HypervisorUnavailable
from compute.virt.shutdown_timer import ShutdownTimer

log = logging.getLogger(__name__)
WORKERS = 8  # turns at the same time (a signal or a power cut); a guest agent may take two seconds
MAX_WORKERS = 64  # the same, with the stuck turns whose hypervisor call does not return
STUCK = 3.0  # seconds after which a turn counts as stuck and another one may start in its place
AGAIN, LONGEST_PAUSE = 1.0, 30.0  # seconds until a failed turn is tried again; doubled unless the hypervisor is away
BLINK = 0.1
TAKE_OVER = ""  # in place of a UUID: take over the timers that an earlier process left
IN_HAND = math.inf


class ShutdownWatcher:
    """The watcher of a host's shutdown timers. It calls `tell(uuid, timer)` at every change of a timer and at its end.

    `tell` runs in the watcher's threads, in order for each guest, and must not block. A waiter calls `mind(uuid)` so
    that it also hears of a timer that has ended already.
    """

    def __init__(self, driver: Driver, tell: Callable[[str, ShutdownTimer], None]) -> None:
        self._driver, self._tell = driver, tell
        self._changed = threading.Condition()
        self._due = {TAKE_OVER: 0.0}
        self._since: dict[str, float] = {}  # start of each turn in progress
        self._seen: dict[str, ShutdownTimer] = {}
        self._news: set[str] = set()  # an end is reported even if nothing changed
        self._failures: dict[str, int] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="shutdown-watcher", daemon=True)

    def start(self) -> None:
        """Start the thread. It first takes over the timers that an earlier process left, once the hypervisor answers.
        """
        self._driver.on_change(self.look)
        self._thread.start()

    def keep(self, uuid: str, timer: ShutdownTimer) -> None:
        """Watch this timer from now on. A caller that will wait for it calls `recheck` once its wait is recorded."""
        with self._changed:
            if uuid not in self._due:
                self._seen[uuid], self._due[uuid] = timer, time.monotonic() + max(BLINK, timer.wait)
                self._changed.notify_all()

    def recheck(self, uuid: str) -> None:
        """Turn the guest's timer now; if it has ended, report it even if nothing changed."""
        with self._changed:
            self._news.add(uuid)
            self._due[uuid] = 0.0
            self._changed.notify_all()

    def over(self, uuid: str, timer: ShutdownTimer) -> None:
        """Report that another call ended this timer, even if the guest no longer has it."""
        with self._changed:
            self._seen[uuid] = timer
            self.recheck(uuid)

    def look(self, uuid: str = "") -> None:
        """Turn the timer of a guest that changed ("": all timers) now. A guest without a timer costs nothing."""
        with self._changed:
            minded = list(self._due) if not uuid else [uuid] if uuid in self._due else []
            self._due.update(dict.fromkeys(minded, 0.0))
            if minded:
                self._changed.notify_all()

    def minded(self) -> dict[str, ShutdownTimer]:
        """Return the watched timers as last seen, by UUID, without asking the hypervisor."""
        with self._changed:
            return dict(self._seen)

    def close(self, seconds: float = 0.0) -> None:
        """Stop; wait up to `seconds` for turns in progress. The timers stay with their guests for the next process."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._since, seconds)
        if seconds and self._thread.is_alive():
            self._thread.join(seconds)

    # -- scheduling

    def _run(self) -> None:
        with self._changed:
            while not self._closing:
                now, free = time.monotonic(), self._free_hands()
                waiting = {uuid: at for uuid, at in self._due.items() if uuid not in self._since}
                due = sorted((uuid for uuid, at in waiting.items() if at <= now), key=waiting.__getitem__)
                for uuid in due[:free]:
                    self._take_in_hand(uuid)
                left = min((at for at in waiting.values() if at > now), default=None)
                self._changed.wait(STUCK if due[free:] else None if left is None else left - now)

    def _free_hands(self) -> int:
        """Return how many more turns may start: a turn that is stuck does not use up one of the HANDS."""
        long_ago = time.monotonic() - STUCK
        stuck = sum(since < long_ago for since in self._since.values())
        return max(0, min(WORKERS + stuck, MAX_WORKERS) - len(self._since))

    def _take_in_hand(self, uuid: str) -> None:
        """Turn one timer in a thread of its own, so that a stuck turn blocks neither the others nor the process's end.
        """
        self._due[uuid] = IN_HAND  # until the turn ends, or a call asks for another one
        self._since[uuid] = time.monotonic()
        threading.Thread(target=self._turn, args=(uuid,), name=f"shutdown-{uuid[:8]}", daemon=True).start()

    # -- turning

    def _turn(self, uuid: str) -> None:
        try:
            due = self._turned(uuid) if uuid else self._resumed()
        except Exception as error:  # keep trying, whatever is wrong with this guest: it has a deadline
            due = self._failed(uuid, error)
        else:
            self._failures.pop(uuid, None)
        with self._changed:
            del self._since[uuid]
            asked_meanwhile = self._due.get(uuid) != IN_HAND
            if not asked_meanwhile and due is None:
                self._due.pop(uuid, None)
                self._seen.pop(uuid, None)
            elif not asked_meanwhile and due is not None:
                self._due[uuid] = due
            self._changed.notify_all()

    def _resumed(self) -> float | None:
        """Take over the timers that an earlier process left. Runs once."""
        for uuid in self._driver.timers():
            self.recheck(uuid)
        return None

    def _turned(self, uuid: str) -> float | None:
        """Turn the timer and return when it is due again; None: it has ended."""
        with self._changed:
            is_news = uuid in self._news
            self._news.discard(uuid)
        timer = self._driver.turn(uuid)
        with self._changed:
            before = self._seen.get(uuid)
            timer = _latest(before, timer)
            self._seen[uuid] = timer
        if timer != before or (is_news and not timer.runs):
            self._tell(uuid, timer)
        return time.monotonic() + max(timer.wait, BLINK) if timer.runs else None

    def _failed(self, uuid: str, error: Exception) -> float:
        """Return when the turn is tried again. Log a guest's first failure only: an absent hypervisor has many guests.
        """
        away = isinstance(error, HypervisorUnavailable)
        times = self._failures[uuid] = self._failures.get(uuid, 0) + 1
        if times == 1 and not self._closing:
            level = logging.INFO if away else logging.ERROR
            log.log(level, "shutdown_watcher.turn_failed uuid=%s error=%r", uuid, error, exc_info=not away)
        with self._changed:
            self._news.add(uuid)  # report at the next success what could not be reported now
        return time.monotonic() + (AGAIN if away else min(LONGEST_PAUSE, AGAIN * 2.0 ** min(times - 1, 9)))


def _latest(before: ShutdownTimer | None, now: ShutdownTimer | None) -> ShutdownTimer:
    """Return the newest timer known; `now` is None when the guest no longer has it, because it is gone or booted."""
    if now is None and before is not None and not before.runs:
        return before
    if now is None:
        moment = time.time()
        return (before or ShutdownTimer(moment, moment, 1.0)).end(moment, "gone")
    return before if before is not None and not before.runs and before.begun == now.begun else now
