"""Machines whose power is switched outside Stillwater, and the power events and locks of their controller."""

from __future__ import annotations

import time
from abc import abstractmethod

from compute.virt.base import Driver, Guest, GuestEvent, GuestLocked, PowerState
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.effects import Effect
from compute.virt.fake.faults import Faults, from_properties
from compute.virt.fake.shutdown import ALIVE
from compute.virt.fake.state import StateFile

VERB = "power_update_event"


class PowerButton(Driver):
    """The verbs about another controller's view of the power state, and the switch itself."""

    faults: Faults
    _state: StateFile
    _call: CallLog

    def power_update_event(self, uuid: str, said: PowerState) -> PowerState:
        """Return what the machine does now. Raises NotSupported unless the fault `accept` is set for the guest."""
        with self._call(VERB, uuid):
            record = self._state.find(uuid)
            fault = from_properties(record.properties).verbs.get(VERB) if record else None
            if self.faults.accepts(VERB, uuid) or (fault and fault.accept):
                return record.power if record else PowerState.NOSTATE
            return super().power_update_event(uuid, said)

    def is_locked(self, uuid: str) -> bool:
        return self.faults.locks(uuid)

    def put_back(self, guest: Guest, *, on: bool) -> None:
        if self.is_locked(guest.uuid):
            raise GuestLocked(f"another controller holds the lock of the machine of {guest.uuid}")
        super().put_back(guest, on=on)

    def switch(self, uuid: str, *, on: bool) -> bool:
        """Press the machine's power button until it is on, or off; return False when it was so already.

        For tests and demonstrations, also from another process with the same state file. Raises GuestNotFound.
        """
        self._is_down(uuid)  # record the guest's own power-off first, if its time has come
        with self._state.alone():
            record = self._state.get(uuid)
            if (record.power in ALIVE) == on:
                return False
            record.power = PowerState.RUNNING if on else PowerState.SHUTDOWN
            record.off_at, record.presses = None, 0
            if on:
                record.boots, record.booted_at = record.boots + 1, time.time()
                self._state.save_timer(uuid, None)
            self._state.save(record)
            self._state.happened(uuid, Effect.SWITCHED_ON if on else Effect.SWITCHED_OFF)
        self._heard(GuestEvent(uuid, record.power, "switched by hand"))
        return True

    @abstractmethod
    def _is_down(self, uuid: str) -> None:
        """Implemented by the driver."""

    @abstractmethod
    def _heard(self, event: GuestEvent) -> None:
        """Implemented by the driver."""
