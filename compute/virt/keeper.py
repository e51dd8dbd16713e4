"""Keeps the clocks of one host's guests: a thread that knows when something is due, and a few that do it.

No thread waits for a guest: fifty guests that take a minute each cost fifty entries in a dict.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from compute.virt.base import Driver, HypervisorUnavailable, VirtError
from compute.virt.clock import Clock

log = logging.getLogger(__name__)
HANDS = 8  # guests that are signalled or forced off at the same moment; an agent may take two seconds
AGAIN = 1.0  # seconds until a hypervisor that did not answer is asked again
BLINK = 0.1


class Keeper:
    """Whoever begins a shutdown says `mind(uuid)`; `tell(uuid, clock)` is called with every change, and at the end.

    `tell` is called from threads of the keeper's, and must not block.
    """

    def __init__(self, driver: Driver, tell: Callable[[str, Clock], None]) -> None:
        self._driver, self._tell = driver, tell
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._seen: dict[str, Clock] = {}
        self._news: set[str] = set()  # told also when nothing changed
        self._in_hand: set[str] = set()
        self._closing = False
        self._hands = ThreadPoolExecutor(HANDS, "grace")
        self._thread = threading.Thread(target=self._run, name="grace-keeper", daemon=True)

    def start(self) -> None:
        """Go on with the clocks that a past life left, once the hypervisor answers."""
        self._driver.on_change(self.look)
        self._thread.start()

    def mind(self, uuid: str) -> None:
        """Keep the clock of this guest from now on, and tell where it is, whether or not that is news."""
        with self._changed:
            self._news.add(uuid)
            self._due[uuid] = 0.0
            self._changed.notify_all()

    def over(self, uuid: str, clock: Clock) -> None:
        """Somebody ended this clock: tell whoever waits for it."""
        with self._changed:
            self._due.pop(uuid, None)
            self._seen.pop(uuid, None)
        self._tell(uuid, clock)

    def look(self, uuid: str = "") -> None:
        """Something happened to a guest (to any of them): look at its clock now."""
        with self._changed:
            for minded in [uuid] if uuid else list(self._due):
                if minded in self._due:
                    self._due[minded] = 0.0
            self._changed.notify_all()

    def minded(self) -> dict[str, Clock]:
        """The clocks that run here, as last seen."""
        with self._changed:
            return dict(self._seen)

    def close(self) -> None:
        """Let go. Clocks stay with their guests, for whoever comes next."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._hands.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        resumed = False
        while not self._closing:
            resumed = resumed or self._resume()
            with self._changed:
                now = time.time()
                ready = [uuid for uuid, due in self._due.items() if due <= now and uuid not in self._in_hand]
                for uuid in ready:
                    self._in_hand.add(uuid)
                    self._due[uuid] = now + 3600  # until its turn says better, or somebody says look
                    self._submit(uuid)
                if not ready and not self._closing:
                    waiting = [due for uuid, due in self._due.items() if uuid not in self._in_hand]
                    left = max(BLINK / 10, min(waiting) - now) if waiting else None
                    self._changed.wait(left if resumed else min(AGAIN, left or AGAIN))

    def _submit(self, uuid: str) -> None:
        try:
            self._hands.submit(self._turn, uuid)
        except RuntimeError:  # closed this very moment
            self._in_hand.discard(uuid)

    def _resume(self) -> bool:
        try:
            for uuid in self._driver.clocks():
                self.mind(uuid)
        except VirtError:
            return False
        return True

    def _turn(self, uuid: str) -> None:
        due: float | None = time.time() + AGAIN
        try:
            due = self._turned(uuid)
        except HypervisorUnavailable:
            log.info("grace.hypervisor_away uuid=%s", uuid)
        except Exception:  # whatever is wrong with one guest, its deadline is kept trying
            log.exception("grace.turn_failed uuid=%s", uuid)
        with self._changed:
            self._in_hand.discard(uuid)
            asked_meanwhile = self._due.get(uuid) == 0.0
            if due is None and not asked_meanwhile:
                self._due.pop(uuid, None)
                self._seen.pop(uuid, None)
            elif due is not None and not asked_meanwhile:
                self._due[uuid] = due
            self._changed.notify_all()

    def _turned(self, uuid: str) -> float | None:
        """When it is due again; None: it has ended."""
        with self._changed:
            before, is_news = self._seen.get(uuid), uuid in self._news
            self._news.discard(uuid)
        clock = self._driver.turn(uuid)
        if clock is None:  # the guest is gone, and what is known of its clock is what was seen last
            now = time.time()
            clock = (before or Clock(now, now, 1.0)).end(now, "gone")
        if is_news or clock != before:
            self._seen[uuid] = clock
            self._tell(uuid, clock)
        if not clock.runs:
            return None
        return max(clock.due, time.time() + BLINK)
