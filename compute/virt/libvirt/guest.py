"""One libvirt domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import libvirt

from cloud.polling import wait_until
from compute.virt.base import (
    GuestInvalidState,
    GuestNotFound,
    OperationTimedOut,
    PowerState,
    ShutdownPreference,
    VirtError,
)
from compute.virt.libvirt import agent
from compute.virt.libvirt.call_timeout import bounded
from compute.virt.libvirt.errors import translated
from compute.virt.libvirt.xml import (
    BOOT_NAMESPACE,
    BOOT_PREFIX,
    NAMESPACE,
    TIMER_NAMESPACE,
    TIMER_PREFIX,
    note_text,
    note_xml,
    reboot_mark,
    shutdown_preference,
)
from compute.virt.shutdown_timer import ShutdownTimer

CALL_SECONDS = 60.0
SAVE_SECONDS = 600.0
POLL_SECONDS = 0.1
SIGNAL_SECONDS = NOTE_SECONDS = 2.0  # short: a QEMU that hangs must not delay its own power cut
NEXT_TIME, NOW = libvirt.VIR_DOMAIN_AFFECT_CONFIG, libvirt.VIR_DOMAIN_AFFECT_LIVE

STATES: Mapping[int, PowerState] = {
    libvirt.VIR_DOMAIN_NOSTATE: PowerState.NOSTATE,
    libvirt.VIR_DOMAIN_RUNNING: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_BLOCKED: PowerState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: PowerState.PAUSED,
    libvirt.VIR_DOMAIN_SHUTDOWN: PowerState.RUNNING,  # it is shutting down, QEMU still runs
    libvirt.VIR_DOMAIN_SHUTOFF: PowerState.SHUTDOWN,
    libvirt.VIR_DOMAIN_CRASHED: PowerState.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: PowerState.SUSPENDED,
}
# A killed QEMU leaves its guest off, with one of these reasons as the only trace.
REASONS: Mapping[tuple[int, int], PowerState] = {
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED): PowerState.CRASHED,
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED): PowerState.CRASHED,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_CRASHED): PowerState.CRASHED,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP): PowerState.RUNNING,
    # short: the guest goes off or continues
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SHUTTING_DOWN): PowerState.RUNNING,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT): PowerState.RUNNING,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_DUMP): PowerState.RUNNING,
}
ENDS: Mapping[int, str] = {
    libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "guest",
    libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "forced",
}
STOPPED_TO_MOVE = frozenset({
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
})  # fmt: skip
OFF = frozenset({PowerState.SHUTDOWN, PowerState.CRASHED, PowerState.SUSPENDED})


def power_state(state: int, reason: int, *, has_saved_memory: bool = False) -> PowerState:
    """Translate libvirt's state and reason into a PowerState."""
    if state == libvirt.VIR_DOMAIN_SHUTOFF and has_saved_memory:
        return PowerState.SUSPENDED
    return REASONS.get((state, reason), STATES.get(state, PowerState.NOSTATE))


class LibvirtGuest:
    """The operations of one domain. Calls that wait for QEMU have a time limit; all raise the contract's errors."""

    def __init__(self, domain: libvirt.virDomain) -> None:
        self.domain = domain

    def power_state(self, *, leaving: PowerState = PowerState.PAUSED) -> PowerState:
        """Return the power state; `leaving` for a guest that libvirt has stopped because it continues elsewhere."""
        with translated():
            state, reason = self.domain.state()
            if (state, reason) in STOPPED_TO_MOVE:
                return leaving
            saved = state == libvirt.VIR_DOMAIN_SHUTOFF and self.domain.hasManagedSaveImage()
            return power_state(state, reason, has_saved_memory=bool(saved))

    def reboot_mark(self) -> str:
        """Return the mark of the last reboot begun, from the definition, or ""."""
        return reboot_mark(kept) if (kept := self._metadata(NAMESPACE)) else ""

    def shutdown_preference(self) -> ShutdownPreference:
        """Return the shutdown preference stored in the definition."""
        return shutdown_preference(kept) if (kept := self._metadata(NAMESPACE)) else ShutdownPreference("")

    def timer(self) -> ShutdownTimer | None:
        """Return the timer of the last shutdown, which stays in the definition until the guest is defined anew.

        A timer is bound to the QEMU process it began with, by a note that is only in the live domain: a guest started
        again by other means, e.g. virsh, starts without its old timer.
        """
        timer = ShutdownTimer.load(note_text(self._metadata(TIMER_NAMESPACE)))
        if timer is None:
            return None
        with suppress(GuestInvalidState):  # off: no live domain to compare with
            if note_text(self._metadata(BOOT_NAMESPACE, NOW)) != repr(timer.begun):
                return None
        return timer

    def save_timer(self, timer: ShutdownTimer) -> None:
        """Store the timer. Raises GuestNotFound. The first store may take CALL_SECONDS, later ones NOTE_SECONDS.

        Without the first one there is no timer at all.
        """
        first = not timer.signalled
        seconds = CALL_SECONDS if first and not timer.how else NOTE_SECONDS
        if first:
            with suppress(GuestInvalidState):
                self._note(BOOT_NAMESPACE, BOOT_PREFIX, note_xml("boot", repr(timer.begun)), NOW, seconds)
        self._note(TIMER_NAMESPACE, TIMER_PREFIX, note_xml("timer", timer.text), NEXT_TIME, seconds)

    def how_ended(self) -> str:
        """Return how the guest went off; "" if libvirt was away then and does not know."""
        with translated():
            state, reason = self.domain.state()
        if power_state(state, reason) is PowerState.CRASHED:
            return "crashed"
        return ENDS.get(reason, "") if state == libvirt.VIR_DOMAIN_SHUTOFF else ""

    def _note(self, namespace: str, prefix: str, xml: str, where: int, seconds: float) -> None:
        element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        bounded(seconds, "metadata", lambda: self.domain.setMetadata(element, xml, prefix, namespace, where))

    def _metadata(self, namespace: str, where: int = NEXT_TIME) -> str:
        """Return an element of the definition, or of the live domain; "" if there is none."""
        element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        try:
            return str(self.domain.metadata(element, namespace, where))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                return ""
            with translated():
                raise

    def definition(self, *, now: bool = False) -> str:
        """Return the XML in the form for other hosts; `now`: of the live domain, else of its next start."""
        flags = libvirt.VIR_DOMAIN_XML_SECURE | libvirt.VIR_DOMAIN_XML_MIGRATABLE
        with translated():
            return self.domain.XMLDesc(flags | (0 if now else libvirt.VIR_DOMAIN_XML_INACTIVE))

    def is_active(self) -> bool:
        """Return whether there is a QEMU process; a saved guest has none."""
        with translated():
            return bool(self.domain.isActive())

    def is_persistent(self) -> bool:
        """Return whether the definition outlives the QEMU process."""
        with translated():
            return bool(self.domain.isPersistent())

    def is_coming_in(self) -> bool:
        """Return whether a live migration is bringing the guest here."""
        return self._is_at(libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN)

    def is_going_out(self) -> bool:
        """Return whether a live migration is taking the guest away."""
        return self._is_at(libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)

    def _is_at(self, operation: int) -> bool:
        try:
            return self.job().get("operation") == operation
        except GuestInvalidState:  # off: it has no job
            return False

    def start(self) -> None:
        """Boot the guest or restore its saved memory. Running is success."""
        try:
            bounded(SAVE_SECONDS, "start", self.domain.create)
        except GuestInvalidState:
            if not self.is_active():
                raise

    def stop(self) -> None:
        """Cut the power. Off is success."""
        try:
            bounded(CALL_SECONDS, "destroy", self.domain.destroy)
        except GuestInvalidState:
            if self.is_active():
                raise

    def has_agent(self) -> bool:
        """Return whether a guest agent is connected."""
        with translated():
            return agent.is_there(self.domain.XMLDesc())

    def press_power_button(self) -> None:
        press = libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN
        bounded(SIGNAL_SECONDS, "shutdown", lambda: self.domain.shutdownFlags(press))

    def pause(self) -> None:
        bounded(CALL_SECONDS, "pause", self.domain.suspend)

    def unpause(self) -> None:
        bounded(CALL_SECONDS, "unpause", self.domain.resume)

    def wake(self) -> None:
        """Wake the guest from ACPI sleep."""
        bounded(CALL_SECONDS, "wake", self.domain.pMWakeup)

    def save(self) -> None:
        """Save the memory to disk and power off; restored, the guest runs, even if it is paused now."""
        self._let_an_earlier_save_end()
        if self.power_state() is PowerState.SUSPENDED:
            return
        running = libvirt.VIR_DOMAIN_SAVE_RUNNING
        try:
            bounded(SAVE_SECONDS, "save", lambda: self.domain.managedSave(running))
        except OperationTimedOut:
            self.abort_job()  # a save that hangs would block every later verb
            raise

    def _let_an_earlier_save_end(self) -> None:
        """Wait for the save that a dead worker left running: a second one would collide with it."""
        save = libvirt.VIR_DOMAIN_JOB_OPERATION_SAVE
        with suppress(GuestInvalidState):  # it went off: it has no job
            if not wait_until(lambda: self.job().get("operation") != save, SAVE_SECONDS, POLL_SECONDS):
                raise OperationTimedOut("an earlier save of this guest does not end")

    def forget_saved_memory(self) -> None:
        with translated():
            if self.domain.hasManagedSaveImage():
                self.domain.managedSaveRemove()

    def undefine(self) -> None:
        everything = (
            libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
        )
        with translated():
            self.domain.undefineFlags(everything)

    def remove(self) -> None:
        """Power off and undefine; a transient domain is gone once its process is."""
        self.stop()
        with suppress(GuestNotFound):
            self.undefine()

    def start_backup(self, xml: str) -> None:
        bounded(CALL_SECONDS, "backup", lambda: self.domain.backupBegin(xml, None))

    def job(self) -> Mapping[str, object]:
        """Return libvirt's figures of the running job; empty if there is none. Raises GuestInvalidState when off."""
        with translated():
            stats = self.domain.jobStats()
        return {} if stats.get("type") == libvirt.VIR_DOMAIN_JOB_NONE else stats

    def finished_job(self, *, keep: bool = False) -> Mapping[str, object]:
        """Return the figures of the last job; libvirt gives them once, unless `keep` is set."""
        flags = libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED
        with translated():
            return self.domain.jobStats(flags | (libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED if keep else 0))

    def when_a_job_ends(self, tell: Callable[[Mapping[str, object]], None]) -> None:
        """Call `tell` with the job's figures in libvirt's event thread, while this connection is open."""
        event = libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED
        with translated():
            self.domain.connect().domainEventRegisterAny(
                self.domain, event, lambda _, __, figures, ___: tell(figures), None
            )

    def start_post_copy(self) -> None:
        """Switch a live migration to post-copy: the guest runs on the destination and fetches its memory on demand."""
        bounded(CALL_SECONDS, "post-copy", self.domain.migrateStartPostCopy)

    def abort_job(self) -> None:
        """Abort the running job. No job is success; errors are ignored."""
        with suppress(VirtError):
            bounded(CALL_SECONDS, "abort", self.domain.abortJob)
