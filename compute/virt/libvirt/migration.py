"""Migration of guests between libvirt hosts.

Each host keeps records of migrating guests in its own state directory, never in shared storage: `arriving/<uuid>` at
the destination, from `pre_migrate` until `finish_migration`; `departed/<uuid>` at the source, from the beginning of
`migrate_out` until `cleanup_source` or `revert_migration`. A guest in `arriving` is not yet a guest of this host.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.virt.base import Guest, GuestNotFound, PowerState, VirtError, Watch
from compute.virt.libvirt import cold_migration, volumes
from compute.virt.libvirt.destination import Destination, has_come, opened, said_before, uuid_of
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles, GuestRecords, files_of
from compute.virt.libvirt.guest import OFF, LibvirtGuest
from compute.virt.libvirt.host import Host
from compute.virt.libvirt.live_migration import LiveMigration, abort, resume_if_running


@dataclass(frozen=True, slots=True)
class MigrationEndpoint:
    """How other hosts reach this one for a migration, and the bandwidth of migrations from here."""

    uri: str = ""  # this host's libvirt as others reach it; "" = the URI it uses itself
    address: str = ""  # where memory and disks are sent to; "" = libvirt's own setting
    bandwidth: int = 0  # MiB/s; 0 = no limit
    tls: bool = False  # memory and disks travel encrypted, in both directions


class Migration:
    """The migration verbs."""

    _host: Host
    _guests: Path
    _id: str
    _disk_cache: str
    _endpoint: MigrationEndpoint
    _arriving: GuestRecords
    _departed: GuestRecords

    def pre_migrate(self, guest: Guest) -> Mapping[str, str]:
        """On shared storage the directory exists and another host owns it; else it is created."""
        uuid, files = guest.uuid, files_of(self._guests, guest.uuid)
        self.cancel_pre_migrate(uuid)
        self.cleanup_source(uuid)
        owner = files.owner()
        with suppress(GuestNotFound):
            found = self._host.guest(uuid)
            if owner in ("", self._id) and files.directory.exists():
                raise VirtError(f"guest {uuid} is on this host already")
            found.remove()  # stale: it moved to another host while this one was away
        with translated():
            self._arriving.write(uuid, {"name": guest.name})
            if owner in ("", self._id):
                files.remove(self._id)
                files.own(self._id)
        return {
            "uri": self._endpoint.uri or self._host.uri, "host_uuid": uuid_of(self._host.connection),
            "address": self._endpoint.address, "directory": str(files.directory), "owner": files.owner(),
            "storage": "own" if files.owner() == self._id else "shared", "disk_cache": self._disk_cache,
            "tls": "required" if self._endpoint.tls else "",
        }  # fmt: skip

    def cancel_pre_migrate(self, uuid: str) -> None:
        files = files_of(self._guests, uuid)
        if not self._arriving.read(uuid):
            return
        with suppress(GuestNotFound):
            self._host.guest(uuid).remove()
        volumes.detach_left_behind(self._host.connection, files.directory)
        files.remove(self._id)
        self._arriving.remove(uuid)

    def check_can_migrate(self, uuid: str, to: Mapping[str, str]) -> None:
        with opened(to, uuid_of(self._host.connection)) as there:
            volumes.must_be_known(there.connection)

    def migrate_out(self, guest: Guest, to: Mapping[str, str], watch: Watch) -> str:
        """Killed at any point and run again, it finds out where the guest is and continues from there."""
        uuid, files = guest.uuid, files_of(self._guests, guest.uuid)
        note = self._departed.read(uuid) or self._note_of(uuid, to)
        if "went" in note:
            return str(note["went"])
        with opened(to, uuid_of(self._host.connection)) as there:
            try:
                went = self._move(uuid, files, PowerState[note["was"]], there, watch)
            except VirtError as error:
                if not error.retryable and not isinstance(error, GuestNotFound):
                    cold_migration.revert(files, self._id)
                    self._departed.remove(uuid)  # it stayed here, in its former state
                raise
            if not there.shares_disks_with(self._id):
                there.tell_console(uuid, files.console_tail())
        with suppress(GuestNotFound):
            self._host.guest(uuid).remove()
        self._departed.write(uuid, note | {"went": went})
        return went

    def finish_migration(self, guest: Guest) -> None:
        uuid, files = guest.uuid, files_of(self._guests, guest.uuid)
        if not self._arriving.read(uuid):
            self._host.guest(uuid)  # or GuestNotFound
            return
        found = self._host.guest(uuid)
        if not has_come(found):
            raise GuestNotFound(f"guest {uuid} has not come to this host")
        said, mark = said_before(found), found.reboot_mark()
        with translated():
            files.own(self._id)
            if said is not None:
                files.remember_console(said)
        volumes.detach_left_behind(self._host.connection, files.directory)
        cold_migration.finish(files, guest)
        self._define(guest, mark)
        self._arriving.remove(uuid)

    def revert_migration(self, guest: Guest) -> None:
        """A guest that was on is removed there first, unless it runs here for certain: it must never run twice."""
        uuid, note = guest.uuid, self._departed.read(guest.uuid)
        if not note:
            self._guest(uuid)  # or GuestNotFound
            return
        state, was = abort(self._host, uuid), PowerState[note["was"]]
        if was not in OFF and state not in OFF | {PowerState.RUNNING}:
            with opened(note["to"], uuid_of(self._host.connection)) as there:
                there.remove(uuid)
        cold_migration.revert(files_of(self._guests, uuid), self._id)
        if state is PowerState.NOSTATE:
            found = self._define(guest, note["mark"])
            if was not in OFF:
                found.start()
        else:
            resume_if_running(self._host.guest(uuid), running=was is PowerState.RUNNING)
        self._departed.remove(uuid)

    def cleanup_source(self, uuid: str) -> None:
        files = files_of(self._guests, uuid)
        if "went" in self._departed.read(uuid):
            cold_migration.cleanup_source(files, self._id)
            files.remove(self._id)
        self._departed.remove(uuid)

    def _forget_moves(self, uuid: str) -> None:
        """Remove the records of a guest that was on its way here or has left."""
        files = files_of(self._guests, uuid)
        if self._arriving.read(uuid):
            volumes.detach_left_behind(self._host.connection, files.directory)
        if self._departed.read(uuid):
            cold_migration.cleanup_source(files, self._id)
        self._arriving.remove(uuid)
        self._departed.remove(uuid)

    @abstractmethod
    def _guest(self, uuid: str) -> LibvirtGuest:
        """Implemented by the driver."""

    @abstractmethod
    def _define(self, guest: Guest, mark: str | None = None) -> LibvirtGuest:
        """Implemented by the driver."""

    def _note_of(self, uuid: str, to: Mapping[str, str]) -> dict[str, Any]:
        """Record what is needed to continue the migration or revert it after a crash."""
        found = self._guest(uuid)
        note = {"was": found.power_state().name, "mark": found.reboot_mark(), "to": dict(to)}
        self._departed.write(uuid, note)
        return note

    def _move(self, uuid: str, files: GuestFiles, was: PowerState, there: Destination, watch: Watch) -> str:
        shared = there.shares_disks_with(self._id)
        if was not in OFF:
            live = LiveMigration(self._host, uuid, files, there, shared=shared, was_running=was is PowerState.RUNNING)
            live.bandwidth = self._endpoint.bandwidth
            live.tls = self._endpoint.tls or there.requires_tls
            return live.migrate(watch)
        if not there.has(uuid):
            definition = there.xml_of(self._host.guest(uuid).definition())
            if shared:
                cold_migration.leave_copy(files, self._id, watch)
            else:
                cold_migration.send(files, there, watch, self._endpoint.bandwidth)
            there.define(definition)
        return "the guest's disk was copied"
