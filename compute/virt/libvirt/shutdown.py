"""The shutdown of libvirt guests: their timers are stored in libvirt's definitions of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import libvirt

from compute.virt.base import GuestInvalidState, GuestNotFound, HypervisorUnavailable, PowerState, ShutdownPreference
from compute.virt.events import GuestNotifier, wait_for
from compute.virt.libvirt import agent
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestRecords
from compute.virt.libvirt.guest import OFF, LibvirtGuest
from compute.virt.libvirt.host import Host
from compute.virt.shutdown import ShutdownDriver
from compute.virt.shutdown_timer import ShutdownTimer


class LibvirtShutdown(ShutdownDriver):
    """The shutdown verbs."""

    _host: Host
    _guests: Path
    _arriving: GuestRecords
    _notifier: GuestNotifier

    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        known = {}
        with translated():
            ours = {entry.name for entry in self._guests.iterdir()} - self._arriving.all()
            on = self._host.connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        for domain in on:
            if domain.UUIDString() in ours:
                with suppress(GuestNotFound):  # it is being destroyed
                    known[domain.UUIDString()] = LibvirtGuest(domain).shutdown_preference()
        return known

    def force_off(self, uuid: str) -> None:
        with suppress(GuestNotFound):
            guest = self._guest(uuid)
            guest.stop()
            guest.forget_saved_memory()

    def timer(self, uuid: str) -> ShutdownTimer | None:
        with suppress(GuestNotFound):
            return self._guest(uuid).timer()
        return None

    def save_timer(self, uuid: str, timer: ShutdownTimer) -> None:
        self._guest(uuid).save_timer(timer)

    def timers(self) -> dict[str, ShutdownTimer]:
        running = {}
        for uuid in self.guests():
            timer = self.timer(uuid)
            if timer is not None and timer.runs:
                running[uuid] = timer
        return running

    def how_ended(self, uuid: str) -> str:
        try:
            return self._guest(uuid).how_ended()
        except GuestNotFound:
            return "gone"

    def on_change(self, look: Callable[[str], None]) -> None:
        self._notifier.tell(look)

    def signal_shutdown(self, uuid: str) -> str:
        guest = self._guest(uuid)
        state = guest.power_state()
        if state is not PowerState.RUNNING:
            raise GuestInvalidState(f"guest {uuid} is {state.name}, not running")
        if guest.has_agent() and agent.shuts_down(self._host.another, uuid):
            return "agent"
        guest.press_power_button()
        return "acpi"

    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        def is_off() -> bool:
            return self.power_state(uuid) in OFF | {PowerState.NOSTATE}

        def is_off_or_away() -> bool:
            # An absent daemon is no answer: keep waiting, its return is an event.
            with suppress(HypervisorUnavailable):
                return is_off()
            return False

        with self._notifier.listening(uuid) as bell:
            return wait_for(bell, is_off_or_away, seconds) or is_off()

    @abstractmethod
    def _guest(self, uuid: str) -> LibvirtGuest:
        """Implemented by the driver."""
