"""Guests on KVM or QEMU, through libvirt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import libvirt

from compute.virt.base import (
    Driver,
    Guest,
    GuestEvent,
    GuestInvalidState,
    GuestNotFound,
    HostFacts,
    HypervisorUnavailable,
    Image,
    ImageSource,
    PowerState,
    VirtError,
)
from compute.virt.events import EventThread, GuestNotifier
from compute.virt.guest_locks import GuestLocks
from compute.virt.libvirt import capabilities, disk, rescue, snapshot
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestRecords, files_of, host_id
from compute.virt.libvirt.guest import LibvirtGuest, power_state
from compute.virt.libvirt.host import Host
from compute.virt.libvirt.lifecycle_events import meaning
from compute.virt.libvirt.migration import Migration, MigrationEndpoint
from compute.virt.libvirt.shutdown import LibvirtShutdown
from compute.virt.libvirt.xml import choose_virt_type, domain_xml

LOOKED_AT_SECONDS = 5.0  # by then a daemon that was restarted has looked at its guests
# a guest with the mark of this reboot: nothing is left to do, or only to power it on
BEGUN = frozenset({PowerState.RUNNING, PowerState.SHUTDOWN})


class LibvirtDriver(LibvirtShutdown, Migration, rescue.Rescue, Driver):
    """One libvirt daemon, one state directory. Connects at first use: build it after a fork."""

    def __init__(
        self,
        uri: str = "qemu:///system",
        state_dir: Path | str = "/var/lib/stillwater",
        *,
        virt_type: str = "auto",
        hostname: str = "",
        host_ip: str = "127.0.0.1",
        guests_dir: Path | str = "",
        migration_uri: str = "",
        migration_address: str = "",
        migration_bandwidth: int = 0,
        open_network: bool = False,
    ) -> None:
        """`hostname` "" is what libvirt says; QEMU must be able to read `state_dir` and `guests_dir`.

        Hosts that share `guests_dir` share the images their disks are based on, and find it at the same path.
        """
        self._state = Path(state_dir).resolve()
        self._guests = Path(guests_dir).resolve() if guests_dir else self._state / "guests"
        images = self._guests / "images" if guests_dir else self._state / "images"
        with translated():
            self._state.mkdir(parents=True, exist_ok=True)
            self._guests.mkdir(parents=True, exist_ok=True)
            self._id = host_id(self._state)
            self._arriving = GuestRecords(self._state / "arriving")
            self._departed = GuestRecords(self._state / "departed")
        self._endpoint = MigrationEndpoint(migration_uri, migration_address, migration_bandwidth)
        self._images = disk.ImageCache(images)
        self._virt_type = choose_virt_type(virt_type)
        self._disk_cache = disk.cache_mode(self._guests)
        self._hostname, self._host_ip, self._open_network = hostname, host_ip, open_network
        self._watchers: list[Callable[[GuestEvent], None]] = []
        self._notifier = GuestNotifier()
        self._locks = GuestLocks(self._state / "locks")
        self._event_thread = EventThread("libvirt-announcer")
        self._host = Host(uri, self._on_event, self._on_back)

    def facts(self) -> HostFacts:
        with translated():
            return capabilities.facts(
                self._host.connection,
                self._state,
                hostname=self._hostname,
                host_ip=self._host_ip,
                virt_type=self._virt_type,
            )

    def guests(self) -> dict[str, PowerState]:
        states = {}
        with translated():
            connection = self._host.connection
            flag = libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE
            saved = {domain.UUIDString() for domain in connection.listAllDomains(flag)}
            ours = {entry.name for entry in self._guests.iterdir()} - self._arriving.all()
            for domain, stats in self._all_states(connection):
                uuid = domain.UUIDString()
                if uuid in ours:
                    state, reason = stats["state.state"], stats["state.reason"]
                    states[uuid] = power_state(state, reason, has_saved_memory=uuid in saved)
        return states

    def power_state(self, uuid: str) -> PowerState:
        try:
            return self._guest(uuid).power_state()
        except GuestNotFound:
            return PowerState.NOSTATE

    def spawn(self, guest: Guest, fetch: ImageSource, *, on: bool = True) -> None:
        with suppress(GuestNotFound):
            if self._guest(guest.uuid).is_active():
                return
        files = files_of(self._guests, guest.uuid)
        self._host.connection  # noqa: B018 - no use in fetching gigabytes for an absent hypervisor
        with translated():
            files.own(self._id)
            rescue.leave(files)
            disk.provide(files.disk, guest, self._images, fetch)
        built = self._define(guest)
        if on:
            built.start()

    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        """On its way here, or gone from here, it is forgotten as well. A disk that stays is nobody's."""
        with suppress(GuestNotFound):
            self._host.guest(uuid).remove()
        with suppress(GuestNotFound):
            files = files_of(self._guests, uuid)
            if disk:
                files.remove(self._id)
            else:
                files.disown(self._id)
            self._forget_moves(uuid)
        self._notifier.ring(uuid)

    def shares_disk(self, uuid: str) -> bool:
        files = files_of(self._guests, uuid)
        with translated():
            return files.disk.exists() and files.owner() != self._id

    def power_on(self, guest: Guest) -> None:
        state = self.power_state(guest.uuid)
        if state is PowerState.RUNNING:
            return
        if state is PowerState.PAUSED:
            self._guest(guest.uuid).unpause()
        elif state is PowerState.SUSPENDED:
            self.resume(guest)
        else:
            self._define(guest).start()

    def reboot_hard(self, guest: Guest, mark: str = "") -> None:
        """The mark is in the definition before the guest is created from it: killed in between, it is only off."""
        with suppress(GuestNotFound):
            old = self._guest(guest.uuid)
            if mark and old.reboot_mark() == mark and old.power_state() in BEGUN:
                old.start()
                return
            old.stop()
            old.forget_saved_memory()
        rescue.leave(files_of(self._guests, guest.uuid))
        self._define(guest, mark).start()

    def rebooted(self, uuid: str, mark: str) -> bool:
        with suppress(GuestNotFound):
            guest = self._guest(uuid)
            return guest.power_state() is PowerState.RUNNING and guest.reboot_mark() == mark
        return False

    def pause(self, uuid: str) -> None:
        guest = self._guest(uuid)
        if guest.power_state() is not PowerState.PAUSED:
            guest.pause()

    def unpause(self, uuid: str) -> None:
        guest = self._guest(uuid)
        if guest.power_state() is not PowerState.RUNNING:
            guest.unpause()

    def suspend(self, uuid: str) -> None:
        guest = self._guest(uuid)
        if guest.power_state() is not PowerState.SUSPENDED:
            guest.save()

    def resume(self, guest: Guest) -> None:
        found = self._guest(guest.uuid)
        state = found.power_state()
        if state is PowerState.RUNNING:
            return
        if state is PowerState.PAUSED:  # restored, but the last attempt died before it ran
            found.unpause()
        elif state is not PowerState.SUSPENDED:
            raise GuestInvalidState(f"guest {guest.uuid} is {state.name}; it has no saved memory")
        elif found.is_active():
            found.wake()
        else:
            found.start()

    def console_output(self, uuid: str) -> str:
        files = files_of(self._guests, uuid)
        if not files.directory.exists():
            raise GuestNotFound(f"no guest {uuid} on this host")
        with translated():
            return files.console_tail()

    def snapshot(self, uuid: str, target: Path) -> Image:
        guest = self._guest(uuid)
        return snapshot.take(guest, files_of(self._guests, uuid).disk, target)

    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        self._watchers.append(callback)
        with suppress(HypervisorUnavailable):  # it is reported when the daemon is there
            self._host.connection  # noqa: B018 - connects

    def close(self) -> None:
        self._host.close()
        self._event_thread.close()

    def _guest(self, uuid: str) -> LibvirtGuest:
        files_of(self._guests, uuid)
        if self._arriving.read(uuid):
            raise GuestNotFound(f"guest {uuid} is on its way to this host")
        return self._host.guest(uuid)

    def _define(self, guest: Guest, mark: str | None = None) -> LibvirtGuest:
        """The guest's definition, made anew; its disk must be there. None keeps the last reboot's mark in it."""
        files = files_of(self._guests, guest.uuid)
        if not files.disk.exists():
            raise GuestNotFound(f"guest {guest.uuid} has no disk on this host")
        xml = domain_xml(
            guest,
            disk=files.disk,
            console=files.console,
            virt_type=self._virt_type,
            disk_cache=self._disk_cache,
            reboot_mark=self._mark_of(guest.uuid) if mark is None else mark,
            rescue=rescue.disk_in_use(files),
            open_network=self._open_network,
        )
        with translated():
            files.trim_console()
            return LibvirtGuest(self._host.connection.defineXML(xml))

    def _mark_of(self, uuid: str) -> str:
        try:
            return self._guest(uuid).reboot_mark()
        except GuestNotFound:
            return ""

    def _all_states(
        self, connection: libvirt.virConnect
    ) -> list[tuple[libvirt.virDomain, dict[str, int]]]:
        # NOWAIT: a guest in the middle of a long job must not hold up the answer for the others
        nowait = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        return connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, nowait)

    def _on_event(self, uuid: str, event: int, detail: int) -> None:
        self._notifier.ring(uuid)
        what = meaning(event, detail)
        if what and self._watchers:
            self._event_thread.submit(partial(self._report, uuid, what))

    def _on_back(self) -> None:
        """A daemon that was restarted answers before it has looked at its guests.

        One whose QEMU died while it was away runs until then, as far as it knows, and then is off without an event.
        """
        self._notifier.ring_all()
        self._event_thread.submit(self._report_all)
        again = threading.Timer(LOOKED_AT_SECONDS, self._event_thread.submit, [self._report_all])
        again.daemon = True
        again.start()

    def _report(self, uuid: str, what: str) -> None:
        """With the state it has by now: an overtaken event must not undo what came after.

        One that goes on elsewhere is no news, and neither is one that is being destroyed.
        """
        if not (self._guests / uuid).exists():
            return
        with suppress(HypervisorUnavailable, GuestNotFound):
            state = self._guest(uuid).power_state(leaving=PowerState.NOSTATE)
            if state is not PowerState.NOSTATE:
                self._tell(GuestEvent(uuid, state, what))

    def _report_all(self) -> None:
        self._notifier.ring_all()
        with suppress(VirtError):
            for uuid, state in self.guests().items():
                self._tell(GuestEvent(uuid, state, "reconnected"))

    def _tell(self, event: GuestEvent) -> None:
        for watcher in list(self._watchers):
            watcher(event)
