"""The live migration of one guest, controlled from its source host.

The process that called libvirt may die while the migration goes on. So the result of the call never counts, only where
the guest is: both hosts can be asked at any time, and the answer is unique.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from time import monotonic

import libvirt

from compute.virt.base import (
    Command,
    GuestInvalidState,
    GuestNotFound,
    MigrationAborted,
    OperationTimedOut,
    PowerState,
    Progress,
    VirtError,
    Watch,
)
from compute.virt.libvirt import qemu_img, volumes
from compute.virt.libvirt.call_timeout import begin, bounded, has_ended
from compute.virt.libvirt.destination import OPEN_SECONDS, Destination
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles
from compute.virt.libvirt.guest import OFF, POLL_SECONDS, LibvirtGuest
from compute.virt.libvirt.host import Host

log = logging.getLogger(__name__)

LOOK_EVERY = 0.4  # seconds between two calls of `watch`
ABORT_SECONDS = 60.0  # the time limit of `abort`
# libvirt 9.0 may miss that the QEMU it copies a disk from is gone. Then its call never returns: it waits in
# qemuDomainObjWait for a change that has already happened. After so long with the guest off, no answer will come.
MISSED_END_SECONDS = 15.0
ATTEMPTS = 4
FIGURES_SECONDS = 2.0
MIB = 1 << 20
POST_COPY = re.compile("post-?copy", re.IGNORECASE)
PEER_TO_PEER = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PEER2PEER
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
)


class GuestLocation(enum.Enum):
    """Where a guest is during its live migration."""

    HERE = "runs here"
    MOVING = "on its way"
    THERE = "has come there"
    OFF = "went off here"


@dataclass
class LiveMigration:
    """One guest's migration from `host` to `there`. `shared`: both hosts see its disk in a shared directory."""

    host: Host
    uuid: str
    files: GuestFiles
    there: Destination
    shared: bool
    was_running: bool
    bandwidth: int = 0  # MiB/s; 0 = no limit
    tls: bool = False
    post_copy: bool = field(init=False)
    _figures: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.post_copy = self.was_running  # post-copy needs running CPUs: a paused guest fetches no memory

    def migrate(self, watch: Watch) -> str:
        """Migrate, or join a running migration; return a sentence. Raises MigrationAborted, GuestInvalidState."""
        failed: VirtError | None = None
        for _ in range(ATTEMPTS):
            where = self._where()
            if where is GuestLocation.THERE:
                return self._how_it_went()
            if where is GuestLocation.OFF:
                raise GuestInvalidState("the guest went off while it was moving")
            if where is GuestLocation.HERE:
                resume_if_running(self._here(), running=self.was_running)
                if failed:
                    raise failed
            failed = self._accompany(watch) if where is GuestLocation.MOVING else self._attempt(watch)
        raise failed or VirtError("the migration ended, and the guest did not move")

    def _here(self) -> LibvirtGuest:
        return self.host.guest(self.uuid)

    def _where(self) -> GuestLocation:
        """Return where the guest is. One that runs here and is not migrating is here, whatever the destination says."""
        try:
            guest = self._here()
            if guest.is_going_out():
                return GuestLocation.MOVING
            state = guest.power_state()
        except GuestNotFound:
            state = PowerState.NOSTATE
        if state is PowerState.RUNNING:
            return GuestLocation.HERE
        if self.there.has(self.uuid):
            return GuestLocation.THERE
        if state is PowerState.NOSTATE:
            raise GuestNotFound(f"guest {self.uuid} is neither here nor there")
        return GuestLocation.OFF if state in OFF else GuestLocation.HERE

    def _attempt(self, watch: Watch) -> VirtError | None:
        """Call libvirt once, on its own connection: the call blocks others of the same connection."""
        self.there.remove(self.uuid)  # left by an attempt that was cut off
        if not self.shared:
            size = qemu_img.virtual_size_in_use(self.files.disk)
            volumes.create_disk(self.there.connection, self.there.files.disk, size)

        def call() -> None:
            with closing(bounded(OPEN_SECONDS, "open", self.host.another)) as connection:
                self._ask(LibvirtGuest(connection.lookupByUUIDString(self.uuid)))

        migration = begin("migrate", call)
        aborted = self._look_on(watch, lambda seconds: has_ended(migration, seconds))
        failure = migration.exception() if migration.done() else None
        if failure is not None and not isinstance(failure, VirtError):
            raise failure
        if failure and self.post_copy and POST_COPY.search(str(failure)):
            self.post_copy = False  # the kernel may refuse post-copy to this user: retry without it
            return None
        return MigrationAborted("the migration was aborted") if aborted else failure

    def _accompany(self, watch: Watch) -> VirtError | None:
        """Watch a migration that an earlier process began."""
        pause, guest = threading.Event(), self._here()

        def is_over(seconds: float) -> bool:
            pause.wait(seconds)
            try:
                return not guest.is_going_out()
            except GuestNotFound:
                return True

        opened = bounded(OPEN_SECONDS, "open", self.host.another)
        with closing(opened) as connection, suppress(GuestNotFound), translated():  # it may leave at this moment
            LibvirtGuest(connection.lookupByUUIDString(self.uuid)).when_a_job_ends(self._remember)
            if self._look_on(watch, is_over):
                return MigrationAborted("the migration was aborted")
        return None

    def _ask(self, guest: LibvirtGuest) -> None:
        there, flags = self.there, PEER_TO_PEER
        guest.when_a_job_ends(self._remember)
        params: dict[str, object] = {
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: there.xml_of(guest.definition(now=True)),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: there.xml_of(guest.definition()),
        }
        if there.to["address"]:
            params[libvirt.VIR_MIGRATE_PARAM_URI] = f"tcp://{there.to['address']}"
        if self.tls:
            flags |= libvirt.VIR_MIGRATE_TLS  # also for the disks, which QEMU sends by NBD
        if self.bandwidth:
            params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = self.bandwidth
        if self.shared:
            flags |= libvirt.VIR_MIGRATE_UNSAFE  # libvirt recognises NFS and the like, not every shared directory
        else:
            flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
            params[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = ["vda"]
        if self.post_copy:
            flags |= libvirt.VIR_MIGRATE_POSTCOPY
        guest.domain.migrateToURI3(there.to["uri"], params, flags)

    def _remember(self, figures: Mapping[str, object]) -> None:
        self._figures = figures

    def _look_on(self, watch: Watch, is_over: Callable[[float], bool]) -> bool:
        """Report progress and follow the commands of `watch` until it is over; return whether it was aborted."""
        begun, aborted, hurried = monotonic(), False, False
        guest = self._here()
        off_since: float | None = None
        while not is_over(LOOK_EVERY):
            try:
                progress = progress_of(guest.job(), monotonic() - begun)
                off_since = None
                command = watch(progress)
                if command is Command.ABORT:
                    guest.abort_job()
                    aborted = True
                elif command is Command.END_NOW and not hurried and progress.memory_total:
                    self._hurry(guest)
                    hurried = True
            except (GuestInvalidState, GuestNotFound):  # off here: over once libvirt has noticed
                off_since = off_since or monotonic()
                if monotonic() - off_since > MISSED_END_SECONDS:
                    log.warning("libvirt.migration_end_missed uuid=%s: restart libvirtd to free the guest", self.uuid)
                    break
        return aborted

    def _hurry(self, guest: LibvirtGuest) -> None:
        """Switch to post-copy; where that is not possible, pause the guest, so that its memory stops changing."""
        if self.post_copy:
            try:
                guest.start_post_copy()
            except VirtError:
                self.post_copy = False
        if not self.post_copy:
            guest.pause()

    def _how_it_went(self) -> str:
        """Return a sentence with libvirt's figures, if there are any.

        The source daemon gives them once, to the caller of the migration; the destination keeps them, but not after
        post-copy.
        """
        pause, deadline = threading.Event(), monotonic() + FIGURES_SECONDS
        while "time_elapsed" not in (said := self._figures or self._figures_there()):
            if monotonic() > deadline:
                return "the guest moved"
            pause.wait(POLL_SECONDS)
        seconds, sent, paused = (int(str(said.get(name, 0))) for name in ("time_elapsed", "data_processed", "downtime"))
        return f"the guest moved in {seconds / 1000:.1f} s: {sent / MIB:.1f} MiB sent, paused for {paused} ms"

    def _figures_there(self) -> Mapping[str, object]:
        try:
            return self.there.guest(self.uuid).finished_job(keep=True)
        except VirtError:
            return {}


def abort(host: Host, uuid: str) -> PowerState:
    """Abort the guest's migrations until none runs; return its state here, NOSTATE if it is gone.

    Raises OperationTimedOut after ABORT_SECONDS.
    """
    pause, until = threading.Event(), monotonic() + ABORT_SECONDS
    try:
        guest = host.guest(uuid)
        while guest.is_going_out():
            if monotonic() > until:
                raise OperationTimedOut(f"guest {uuid} still migrates, {ABORT_SECONDS:.0f} s after it was to stop")
            guest.abort_job()
            pause.wait(LOOK_EVERY)
        return guest.power_state()
    except GuestNotFound:
        return PowerState.NOSTATE


def resume_if_running(guest: LibvirtGuest, *, running: bool) -> None:
    """Unpause a guest that was `running` before its migration: END_NOW may have paused it."""
    if running and guest.power_state() is PowerState.PAUSED:
        guest.unpause()


def progress_of(said: Mapping[str, object], seconds: float) -> Progress:
    """Translate libvirt's figures into a Progress."""
    names = ("memory_total", "memory_remaining", "disk_total", "disk_remaining")
    memory, memory_left, disk, disk_left = (int(str(said.get(name, 0))) for name in names)
    return Progress(memory, memory_left, disk, disk_left, seconds)
