"""The graceful shutdown of a guest: signal it, signal it again, and cut its power at the deadline.

The timer is stored with the guest before and after each action, so that any process of the host can continue it. A
process killed between a signal and its record leads to one more signal: one too many is better than one too few.
`shutdown_timer.py` has the timer, `shutdown_watcher.py` the thread that turns the timers of a host.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from compute.virt.base import (
    Driver,
    GuestInvalidState,
    GuestNotFound,
    HypervisorUnavailable,
    PowerState,
    VirtError,
)
from compute.virt.guest_locks import GuestLocks
from compute.virt.shutdown_timer import CUT_SHORT, ShutdownTimer

log = logging.getLogger(__name__)

OFF = frozenset({PowerState.NOSTATE, PowerState.SHUTDOWN, PowerState.CRASHED})
CANNOT_REACT = frozenset({PowerState.PAUSED, PowerState.SUSPENDED})
MIN_WAIT = 0.1  # seconds: the shortest wait between two turns


class ShutdownDriver(Driver):
    """The shutdown verbs, the same for every driver, built on `timer`, `save_timer`, `signal_shutdown` and `force_off`.
    """

    _locks: GuestLocks

    def begin_shutdown(self, uuid: str, timeout: float, retry_interval: float) -> ShutdownTimer | None:
        """Start the guest's shutdown timer, or join the one that runs, and do what it requires now. Does not wait.

        Returns None when the guest is off and has no timer. A `timeout` of 0 ends the timer now, also one that another
        caller started. A paused or suspended guest cannot react to a signal and is forced off at once. Takes the
        guest's lock. Raises VirtError.
        """
        with self._locks.alone(uuid):
            timer, state = self.timer(uuid), self.power_state(uuid)
            if timer is not None and timer.runs:
                if timeout <= 0 and state not in OFF:
                    return self._force(uuid, timer, CUT_SHORT)
                return self._turn(uuid, timer, state)
            if state in OFF:
                self.force_off(uuid)
                return timer
            timer = ShutdownTimer.start(time.time(), timeout, retry_interval)
            if timeout <= 0 and state not in CANNOT_REACT:
                return self._force(uuid, timer)
            self.save_timer(uuid, timer)
            with suppress(HypervisorUnavailable):  # the timer runs now: the next turn tries again
                return self._turn(uuid, timer, state)
            return timer

    def turn(self, uuid: str) -> ShutdownTimer | None:
        """Do what the guest's timer requires now; return the timer, or None. Takes the guest's lock. Raises VirtError.
        """
        with self._locks.alone(uuid):
            timer = self.timer(uuid)
            if timer is None or not timer.runs:
                return timer
            return self._turn(uuid, timer, self.power_state(uuid))

    def power_off(self, uuid: str, timeout: float = 0.0, retry_interval: float = 10.0) -> ShutdownTimer | None:
        """Shut the guest down and wait until it is off; a running timer is joined, or ended now if `timeout` is 0."""
        timer = self.begin_shutdown(uuid, timeout, retry_interval)
        while timer is not None and timer.runs:
            self.wait_until_off(uuid, max(MIN_WAIT, timer.wait))
            timer = self.turn(uuid)
        return timer

    def stop_timer(self, uuid: str) -> None:
        """End the guest's running timer as "left", without a power cut. Takes the guest's lock."""
        with self._locks.alone(uuid):
            timer = self.timer(uuid)
            if timer is not None and timer.runs:
                self._kept(uuid, replace(timer, ended=timer.now(), how="left", why=""))

    def _turn(self, uuid: str, timer: ShutdownTimer, state: PowerState) -> ShutdownTimer:
        now = timer.now()
        if state in OFF:
            return self._off(uuid, timer)
        if state in CANNOT_REACT:
            return self._force(uuid, timer, f"it was {state.name.lower()}")
        if now >= timer.deadline or timer.how == "forced":
            return self._force(uuid, timer, timer.why)
        if now >= timer.next_signal:
            return self._signal(uuid, timer, now)
        return timer

    def _signal(self, uuid: str, timer: ShutdownTimer, now: float) -> ShutdownTimer:
        try:
            by = self.signal_shutdown(uuid)
        except (GuestInvalidState, GuestNotFound):
            return timer  # it went off since its state was read: the next turn sees that
        except HypervisorUnavailable:
            raise
        except VirtError as error:  # treat it as a signal that the guest ignores: the retry interval applies
            log.warning("shutdown.signal_failed uuid=%s error=%r", uuid, error)
            return self._noted(uuid, replace(timer, signalled=now))
        return self._noted(uuid, timer.signal(now, by))

    def _force(self, uuid: str, timer: ShutdownTimer, why: str = "") -> ShutdownTimer:
        timer = self._noted(uuid, timer.forcing(why))
        self.force_off(uuid)
        return self._off(uuid, timer)

    def _off(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        """Record the end of the shutdown as the hypervisor reports it; for a guest that is gone, as recorded before."""
        how = self.how_ended(uuid)
        return self._noted(uuid, timer.end(timer.now(), timer.how if how == "gone" and timer.how else how))

    def _noted(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        """Store the timer if possible: a guest that hangs may prevent that, but must not prevent the power cut."""
        try:
            return self._kept(uuid, timer)
        except HypervisorUnavailable:
            raise
        except VirtError as error:
            log.warning("shutdown.timer_not_saved uuid=%s error=%r", uuid, error)
            return timer

    def _kept(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        with suppress(GuestNotFound):  # the timer is gone with the guest
            self.save_timer(uuid, timer)
        return timer
