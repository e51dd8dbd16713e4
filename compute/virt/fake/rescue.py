"""Rescue of fake guests: the id of the rescue image is stored with the guest."""

from __future__ import annotations

from abc import abstractmethod

from compute.virt.base import Guest, Image, ImageSource, PowerState
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.effects import Effect
from compute.virt.fake.images import Images
from compute.virt.fake.state import StateFile


class Rescue:
    """The rescue verbs."""

    _state: StateFile
    _call: CallLog
    _images: Images

    def rescue(self, guest: Guest, image: Image, fetch: ImageSource) -> None:
        """In two parts, as a real driver does: off with the image stored, then on."""
        with self._call("rescue", guest.uuid, guest) as die_if_ordered:
            old = self._state.get(guest.uuid)
            if old.rescue and old.power is PowerState.RUNNING:
                return
            self._images.virtual_size(image, fetch)
            self._is_down(guest.uuid)
            with self._state.alone():
                record = self._state.get(guest.uuid)
                record.power, record.rescue = PowerState.SHUTDOWN, image.id
                record.off_at, record.presses = None, 0
                self._state.save(record)
            die_if_ordered()
            self._boot(guest, Effect.RESCUED)

    def unrescue(self, guest: Guest) -> None:
        with self._call("unrescue", guest.uuid, guest), self._state.alone():
            record = self._state.find(guest.uuid)
            if record is not None and record.rescue:
                record.power, record.rescue = PowerState.SHUTDOWN, ""
                record.off_at, record.presses = None, 0
                self._state.save(record)
                self._state.happened(guest.uuid, Effect.UNRESCUED)

    @abstractmethod
    def _is_down(self, uuid: str) -> None:
        """Implemented by the driver."""

    @abstractmethod
    def _boot(self, guest: Guest, effect: Effect, mark: str = "", virtual_size: int = 0) -> None:
        """Implemented by the driver."""
