"""Keeps the clocks of one host's guests: a thread that knows when something is due, and a few hands that do it.

No thread waits for a guest: fifty guests that take a minute each cost fifty entries in a dict.
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
HANDS = 8  # guests that are signalled or forced off at the same moment; an agent may take two seconds
MOST_HANDS = 64  # those included that hold a guest whose hypervisor does not let go of them
STUCK = 3.0  # seconds after which another hand does the others' work
AGAIN, LONGEST_PAUSE = 1.0, 30.0  # seconds until what went wrong is tried again; less often each time
BLINK = 0.1
PAST = ""  # in place of a guest: the clocks that a past life left
IN_HAND = math.inf


class ShutdownWatcher:
    """Whoever waits for a guest says `mind(uuid)`; `tell(uuid, clock)` is called with every change, and at the end.

    `tell` is called from threads of the keeper's, for each guest in order, and must not block.
    """

    def __init__(self, driver: Driver, tell: Callable[[str, ShutdownTimer], None]) -> None:
        self._driver, self._tell = driver, tell
        self._changed = threading.Condition()
        self._due = {PAST: 0.0}
        self._since: dict[str, float] = {}  # in hand
        self._seen: dict[str, ShutdownTimer] = {}
        self._news: set[str] = set()  # told also when nothing changed
        self._failures: dict[str, int] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="grace-keeper", daemon=True)

    def start(self) -> None:
        """Go on with the clocks that a past life left, once the hypervisor answers."""
        self._driver.on_change(self.look)
        self._thread.start()

    def keep(self, uuid: str, timer: ShutdownTimer) -> None:
        """Keep this clock from now on. Whoever is about to wait for it says `mind` once he does."""
        with self._changed:
            if uuid not in self._due:
                self._seen[uuid], self._due[uuid] = timer, time.monotonic() + max(BLINK, timer.wait)
                self._changed.notify_all()

    def mind(self, uuid: str) -> None:
        """Look at the clock of this guest now, and tell where it is if it has ended, whether or not that is news."""
        with self._changed:
            self._news.add(uuid)
            self._due[uuid] = 0.0
            self._changed.notify_all()

    def over(self, uuid: str, timer: ShutdownTimer) -> None:
        """Somebody ended this clock: tell whoever waits for it, though the guest may have forgotten it."""
        with self._changed:
            self._seen[uuid] = timer
            self.mind(uuid)

    def look(self, uuid: str = "") -> None:
        """Something happened to a guest (to any of them): look at its clock now. Nothing, for most guests."""
        with self._changed:
            minded = list(self._due) if not uuid else [uuid] if uuid in self._due else []
            self._due.update(dict.fromkeys(minded, 0.0))
            if minded:
                self._changed.notify_all()

    def minded(self) -> dict[str, ShutdownTimer]:
        """The clocks that run here, as last seen."""
        with self._changed:
            return dict(self._seen)

    def close(self, seconds: float = 0.0) -> None:
        """Let go; wait so long for what is in hand. Clocks stay with their guests, for whoever comes next."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._since, seconds)
        if seconds and self._thread.is_alive():
            self._thread.join(seconds)

    # -- when

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
        """A guest that holds its hand for long does not keep the others waiting."""
        long_ago = time.monotonic() - STUCK
        stuck = sum(since < long_ago for since in self._since.values())
        return max(0, min(HANDS + stuck, MOST_HANDS) - len(self._since))

    def _take_in_hand(self, uuid: str) -> None:
        """A thread for each turn: one that is stuck holds up neither the others nor the end of the process."""
        self._due[uuid] = IN_HAND  # until its turn says better, or somebody says look
        self._since[uuid] = time.monotonic()
        threading.Thread(target=self._turn, args=(uuid,), name=f"grace-{uuid[:8]}", daemon=True).start()

    # -- what

    def _turn(self, uuid: str) -> None:
        try:
            due = self._turned(uuid) if uuid else self._resumed()
        except Exception as error:  # whatever is wrong with one guest, its deadline is kept trying
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
        """Done once."""
        for uuid in self._driver.timers():
            self.mind(uuid)
        return None

    def _turned(self, uuid: str) -> float | None:
        """When it is due again; None: it has ended."""
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
        """When it is tried again. Said once: an absent hypervisor has many guests."""
        away = isinstance(error, HypervisorUnavailable)
        times = self._failures[uuid] = self._failures.get(uuid, 0) + 1
        if times == 1 and not self._closing:
            log.log(logging.INFO if away else logging.ERROR, "grace.turn_failed uuid=%s error=%r", uuid, error,
                    exc_info=not away)  # fmt: skip
        with self._changed:
            self._news.add(uuid)  # what could not be told is told the next time
        return time.monotonic() + (AGAIN if away else min(LONGEST_PAUSE, AGAIN * 2.0 ** min(times - 1, 9)))


def _latest(before: ShutdownTimer | None, now: ShutdownTimer | None) -> ShutdownTimer:
    """What is known of a clock that the guest tells us about now, or has forgotten: it is gone, or booted."""
    if now is None and before is not None and not before.runs:
        return before
    if now is None:
        moment = time.time()
        return (before or ShutdownTimer(moment, moment, 1.0)).end(moment, "gone")
    return before if before is not None and not before.runs and before.begun == now.begun else now
