"""The libvirt driver: guests on KVM or QEMU."""

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

LOOKED_AT_SECONDS = 5.0  # by then a restarted daemon has checked its guests
# with the mark of this reboot, such a guest is left alone, or only powered on
BEGUN = frozenset({PowerState.RUNNING, PowerState.SHUTDOWN})


class LibvirtDriver(LibvirtShutdown, Migration, rescue.Rescue, Driver):
    """One libvirt daemon and one state directory. Connects at first use: build it after a fork."""

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
        migration_tls: bool = False,
        open_network: bool = False,
    ) -> None:
        """`hostname` "" takes libvirt's; QEMU must be able to read `state_dir` and `guests_dir`.

        Hosts that share `guests_dir` have it at the same path, and share the images that their disks are based on.
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
        self._endpoint = MigrationEndpoint(migration_uri, migration_address, migration_bandwidth, migration_tls)
        self._images = disk.ImageCache(images)
        self._virt_type = choose_virt_type(virt_type)
        self._disk_cache = disk.cache_mode(self._guests)
        self._hostname, self._host_ip, self._open_network = hostname, host_ip, open_network
        self._watchers: list[Callable[[GuestEvent], None]] = []
        self._notifier = GuestNotifier()
        self._locks = GuestLocks(self._state / "locks")
        self._event_thread = EventThread("libvirt-event-dispatch")
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
        self._host.connection  # noqa: B018 - fails here, before gigabytes are fetched for an absent hypervisor
        with translated():
            files.own(self._id)
            rescue.leave(files)
            disk.provide(files.disk, guest, self._images, fetch)
        built = self._define(guest)
        if on:
            built.start()

    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        """Also removes the records of a migration of the guest. A disk that stays has no owner any more."""
        with suppress(GuestNotFound):
            self._host.guest(uuid).remove()
        with suppress(GuestNotFound):
            files = files_of(self._guests, uuid)
            if disk:
                files.remove(self._id)
            else:
                files.disown(self._id)
            self._forget_moves(uuid)
        self._notifier.notify(uuid)

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
        """Define the guest with its mark before it starts: killed in between, the guest is only off."""
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
        if state is PowerState.PAUSED:  # the last attempt died after the restore, before the guest ran
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
        with suppress(HypervisorUnavailable):  # guests are reported once the daemon answers
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
        """Define the guest anew; its disk must exist. `mark` None keeps the mark of the last reboot."""
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
        # NOWAIT: a guest with a long job must not delay the answer for the others
        nowait = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        return connection.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE, nowait)

    def _on_event(self, uuid: str, event: int, detail: int) -> None:
        self._notifier.notify(uuid)
        what = meaning(event, detail)
        if what and self._watchers:
            self._event_thread.submit(partial(self._report, uuid, what))

    def _on_back(self) -> None:
        """Report all guests, now and again later: a restarted daemon answers before it has checked its guests.

        A guest whose QEMU died while the daemon was away is shown as running until that check, and then as off without
        an event.
        """
        self._notifier.notify_all()
        self._event_thread.submit(self._report_all)
        again = threading.Timer(LOOKED_AT_SECONDS, self._event_thread.submit, [self._report_all])
        again.daemon = True
        again.start()

    def _report(self, uuid: str, what: str) -> None:
        """Report the guest with its present state: a late event must not undo a newer one.

        Guests that continue on another host or are being destroyed are not reported.
        """
        if not (self._guests / uuid).exists():
            return
        with suppress(HypervisorUnavailable, GuestNotFound):
            state = self._guest(uuid).power_state(leaving=PowerState.NOSTATE)
            if state is not PowerState.NOSTATE:
                self._tell(GuestEvent(uuid, state, what))

    def _report_all(self) -> None:
        self._notifier.notify_all()
        with suppress(VirtError):
            for uuid, state in self.guests().items():
                self._tell(GuestEvent(uuid, state, "reconnected"))

    def _tell(self, event: GuestEvent) -> None:
        for watcher in list(self._watchers):
            watcher(event)
