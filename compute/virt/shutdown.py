"""Shutting a guest down with grace: signal, signal again, and pull the plug at the deadline.

Every step of it is kept with the guest before and after it happens, so that any process can go on with it. Killed
between a signal and the note of it, the next one signals again: one too many is better than one too few.
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
from compute.virt.shutdown_timer import HURRY, ShutdownTimer

log = logging.getLogger(__name__)

OFF = frozenset({PowerState.NOSTATE, PowerState.SHUTDOWN, PowerState.CRASHED})
CANNOT_HEAR = frozenset({PowerState.PAUSED, PowerState.SUSPENDED})
BLINK = 0.1  # seconds: it is going off this very moment


class ShutdownDriver(Driver):
    """What every driver has in common, built on its `clock`, `keep_clock`, `signal_shutdown`, `force_off`."""

    _locks: GuestLocks

    def begin_shutdown(self, uuid: str, timeout: float, retry_interval: float) -> ShutdownTimer | None:
        """Start the guest's clock, or join the one that runs, and do what is due. Does not wait.

        None when the guest is off and no clock of it is known. `timeout` 0 ends it now, whoever's clock runs. One
        that cannot hear is forced off. Raises VirtError.
        """
        with self._locks.alone(uuid):
            timer, state = self.timer(uuid), self.power_state(uuid)
            if timer is not None and timer.runs:
                if timeout <= 0 and state not in OFF:
                    return self._force(uuid, timer, HURRY)
                return self._turn(uuid, timer, state)
            if state in OFF:
                self.force_off(uuid)
                return timer
            timer = ShutdownTimer.start(time.time(), timeout, retry_interval)
            if timeout <= 0 and state not in CANNOT_HEAR:
                return self._force(uuid, timer)
            self.save_timer(uuid, timer)
            with suppress(HypervisorUnavailable):  # from here on the clock runs, and whoever turns it tries again
                return self._turn(uuid, timer, state)
            return timer

    def turn(self, uuid: str) -> ShutdownTimer | None:
        """Do what is due for a guest whose clock runs, and say where it is. None: no clock. Raises VirtError."""
        with self._locks.alone(uuid):
            timer = self.timer(uuid)
            if timer is None or not timer.runs:
                return timer
            return self._turn(uuid, timer, self.power_state(uuid))

    def power_off(self, uuid: str, timeout: float = 0.0, retry_interval: float = 10.0) -> ShutdownTimer | None:
        """Off when this returns. A clock that runs is joined: its deadline counts, or now if `timeout` is 0."""
        timer = self.begin_shutdown(uuid, timeout, retry_interval)
        while timer is not None and timer.runs:
            self.wait_until_off(uuid, max(BLINK, timer.wait))
            timer = self.turn(uuid)
        return timer

    def stop_timer(self, uuid: str) -> None:
        """Nobody wants the guest off any more."""
        with self._locks.alone(uuid):
            timer = self.timer(uuid)
            if timer is not None and timer.runs:
                self._kept(uuid, replace(timer, ended=timer.now(), how="left", why=""))

    def _turn(self, uuid: str, timer: ShutdownTimer, state: PowerState) -> ShutdownTimer:
        now = timer.now()
        if state in OFF:
            return self._off(uuid, timer)
        if state in CANNOT_HEAR:
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
            return timer  # it went off between the look and the signal: the next turn sees it
        except HypervisorUnavailable:
            raise
        except VirtError as error:  # a guest that cannot be signalled is one that does not hear
            log.warning("grace.signal_failed uuid=%s error=%r", uuid, error)
            return self._noted(uuid, replace(timer, signalled=now))
        return self._noted(uuid, timer.signal(now, by))

    def _force(self, uuid: str, timer: ShutdownTimer, why: str = "") -> ShutdownTimer:
        timer = self._noted(uuid, timer.forcing(why))
        self.force_off(uuid)
        return self._off(uuid, timer)

    def _off(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        """Its end, as the hypervisor saw it; a guest that is gone ended as was said before."""
        how = self.how_ended(uuid)
        return self._noted(uuid, timer.end(timer.now(), timer.how if how == "gone" and timer.how else how))

    def _noted(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        """A guest that hangs may keep us from writing it down; not from going on, and from pulling the plug."""
        try:
            return self._kept(uuid, timer)
        except HypervisorUnavailable:
            raise
        except VirtError as error:
            log.warning("grace.not_kept uuid=%s error=%r", uuid, error)
            return timer

    def _kept(self, uuid: str, timer: ShutdownTimer) -> ShutdownTimer:
        with suppress(GuestNotFound):  # its clock is gone with it
            self.save_timer(uuid, timer)
        return timer
