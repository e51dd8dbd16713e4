"""The live migration of one guest, watched from the host it leaves.

Whoever asked libvirt for it may die while it goes on. So what counts is never what a call answered, but where the
guest is; that can be asked again at any time, of both hosts, and has one answer.
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
from compute.virt.libvirt.bounded import bounded
from compute.virt.libvirt.destination import OPEN_SECONDS, Destination
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.files import GuestFiles
from compute.virt.libvirt.guest import OFF, POLL_SECONDS, LibvirtGuest
from compute.virt.libvirt.host import Host

log = logging.getLogger(__name__)

LOOK_EVERY = 0.4  # seconds between two looks at what becomes of it
ABORT_SECONDS = 60.0  # then whoever ends it tries again later
# libvirt 9.0 may not notice that the QEMU it copies a disk from is gone, and then its call never returns: it waits in
# qemuDomainObjWait for a change that has been. A guest that is off so long without an answer has none to come.
UNHEARD_SECONDS = 15.0
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


class Where(enum.Enum):
    """Where a guest is that is being migrated."""

    HERE = "runs here"
    MOVING = "on its way"
    THERE = "has come there"
    OFF = "went off here"


@dataclass
class Live:
    """One guest, from `host` to `there`. `shared`: they have its disk in common."""

    host: Host
    uuid: str
    files: GuestFiles
    there: Destination
    shared: bool
    was_running: bool
    bandwidth: int = 0  # MiB/s; 0: as fast as it goes
    post_copy: bool = field(init=False)
    _figures: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.post_copy = self.was_running  # one that is paused fetches nothing

    def migrate(self, watch: Watch) -> str:
        """Until the guest is there; how it went, for people. Raises MigrationAborted, GuestInvalidState."""
        failed: VirtError | None = None
        for _ in range(ATTEMPTS):
            where = self._where()
            if where is Where.THERE:
                return self._how_it_went()
            if where is Where.OFF:
                raise GuestInvalidState("the guest went off while it was moving")
            if where is Where.HERE:
                go_on(self._here(), running=self.was_running)
                if failed:
                    raise failed
            failed = self._accompany(watch) if where is Where.MOVING else self._attempt(watch)
        raise failed or VirtError("the migration ended, and the guest did not move")

    def _here(self) -> LibvirtGuest:
        return self.host.guest(self.uuid)

    def _where(self) -> Where:
        """A guest that runs here, and is not on its way, is here whatever the other host says."""
        try:
            guest = self._here()
            if guest.is_going_out():
                return Where.MOVING
            state = guest.power_state()
        except GuestNotFound:
            state = PowerState.NOSTATE
        if state is PowerState.RUNNING:
            return Where.HERE
        if self.there.has(self.uuid):
            return Where.THERE
        if state is PowerState.NOSTATE:
            raise GuestNotFound(f"guest {self.uuid} is neither here nor there")
        return Where.OFF if state in OFF else Where.HERE

    def _attempt(self, watch: Watch) -> VirtError | None:
        """One call of libvirt's, on a connection of its own: it holds up others of the same connection."""
        self.there.remove(self.uuid)  # left by an attempt that was cut off
        if not self.shared:
            size = qemu_img.virtual_size_in_use(self.files.disk)
            volumes.create_disk(self.there.connection, self.there.files.disk, size)
        failures: list[VirtError] = []
        done = threading.Event()

        def call() -> None:
            try:
                with closing(bounded(OPEN_SECONDS, "open", self.host.another)) as connection, translated():
                    self._ask(LibvirtGuest(connection.lookupByUUIDString(self.uuid)))
            except VirtError as error:
                failures.append(error)
            finally:
                done.set()

        threading.Thread(target=call, name="libvirt-migrate", daemon=True).start()
        aborted = self._look_on(watch, done.wait)
        if failures and self.post_copy and POST_COPY.search(str(failures[0])):
            self.post_copy = False  # not every kernel lets every user have it
            return None
        return MigrationAborted("the migration was aborted") if aborted else next(iter(failures), None)

    def _accompany(self, watch: Watch) -> VirtError | None:
        """One that somebody else began, and did not live to see the end of."""
        pause, guest = threading.Event(), self._here()

        def is_over(seconds: float) -> bool:
            pause.wait(seconds)
            try:
                return not guest.is_going_out()
            except GuestNotFound:
                return True

        opened = bounded(OPEN_SECONDS, "open", self.host.another)
        with closing(opened) as connection, suppress(GuestNotFound), translated():  # it may leave just now
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
        if self.bandwidth:
            params[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = self.bandwidth
        if self.shared:
            flags |= libvirt.VIR_MIGRATE_UNSAFE  # libvirt knows of NFS and its like, not of every shared folder
        else:
            flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
            params[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = ["vda"]
        if self.post_copy:
            flags |= libvirt.VIR_MIGRATE_POSTCOPY
        guest.domain.migrateToURI3(there.to["uri"], params, flags)

    def _remember(self, figures: Mapping[str, object]) -> None:
        self._figures = figures

    def _look_on(self, watch: Watch, is_over: Callable[[float], bool]) -> bool:
        """Report, and do as one is told, until it is over; whether it was to be aborted."""
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
            except (GuestInvalidState, GuestNotFound):  # off here: over as soon as libvirt has seen it
                off_since = off_since or monotonic()
                if monotonic() - off_since > UNHEARD_SECONDS:
                    log.warning("libvirt.migration_unheard uuid=%s: restart libvirtd to free the guest", self.uuid)
                    break
        return aborted

    def _hurry(self, guest: LibvirtGuest) -> None:
        """Have it run there at once and fetch its memory as it goes; else stop it, so that it changes no more."""
        if self.post_copy:
            try:
                guest.start_post_copy()
            except VirtError:
                self.post_copy = False
        if not self.post_copy:
            guest.pause()

    def _how_it_went(self) -> str:
        """The daemon here says it once, to who asked for the move; the one there for long, but not after post-copy."""
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


def call_off(host: Host, uuid: str) -> PowerState:
    """No migration takes the guest away any more; what it does now. Raises OperationTimedOut."""
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


def go_on(guest: LibvirtGuest, *, running: bool) -> None:
    """A guest that ran before its migration runs on: one may have stopped it, to be over sooner."""
    if running and guest.power_state() is PowerState.PAUSED:
        guest.unpause()


def progress_of(said: Mapping[str, object], seconds: float) -> Progress:
    """libvirt's numbers as ours."""
    names = ("memory_total", "memory_remaining", "disk_total", "disk_remaining")
    memory, memory_left, disk, disk_left = (int(str(said.get(name, 0))) for name in names)
    return Progress(memory, memory_left, disk, disk_left, seconds)
