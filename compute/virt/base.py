"""The contract between Stillwater and a hypervisor: the abstract class `Driver`. Plain Python, no Django, no Celery.

The data types and errors of the contract are in `types.py`. `shutdown.py` builds the graceful shutdown on a few
primitive verbs. The contract suite (`tests/virt/`) runs on every driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.types import (
    MIGRATES,
    Command,
    Guest,
    GuestEvent,
    GuestInvalidState,
    GuestLocked,
    GuestNotFound,
    HostFacts,
    HypervisorUnavailable,
    Image,
    ImageSource,
    ImageUnusable,
    InsufficientResources,
    MigrationAborted,
    NotSupported,
    OperationTimedOut,
    PowerState,
    Progress,
    ShutdownPreference,
    VirtError,
    Watch,
)

__all__ = [
    "MIGRATES",
    "Command",
    "Driver",
    "Guest",
    "GuestEvent",
    "GuestInvalidState",
    "GuestLocked",
    "GuestNotFound",
    "HostFacts",
    "HypervisorUnavailable",
    "Image",
    "ImageSource",
    "ImageUnusable",
    "InsufficientResources",
    "MigrationAborted",
    "NotSupported",
    "OperationTimedOut",
    "PowerState",
    "Progress",
    "ShutdownPreference",
    "VirtError",
    "Watch",
]


class Driver(ABC):
    """One hypervisor, or one Ironic.

    Every verb may run again with the same arguments: a state that holds already is success, unless the docstring says
    otherwise. Every verb but `migrate_out` has a time limit, and every verb raises only `VirtError` and its subclasses.
    Every verb may raise HypervisorUnavailable and OperationTimedOut (both retryable), and NotSupported where the
    hypervisor has no such operation. Threads may call verbs concurrently on different guests; the shutdown verbs also
    on the same guest.

    Units: seconds, memory in MiB, disks in GiB, image sizes in bytes. `uuid` is the server's UUID.
    """

    guests_live_elsewhere: bool = False  # bare metal: guests stay on when this worker's own machine goes down

    @abstractmethod
    def facts(self) -> HostFacts:
        """Return the capacity and properties of this host, read from the hypervisor at each call."""

    def nodes(self) -> list[HostFacts]:
        """Return every node that this host serves, in one call. Most hosts are their only node."""
        return [self.facts()]

    @abstractmethod
    def guests(self) -> dict[str, PowerState]:
        """Return the power state of each of our guests on this host, by UUID, in one hypervisor call.

        The state is NOSTATE while another controller switches the guest. Guests on their way to this host are left out.
        """

    @abstractmethod
    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        """Return the shutdown preference, as of its last start, of each of our guests that is on or paused, by UUID."""

    @abstractmethod
    def power_state(self, uuid: str) -> PowerState:
        """Return the guest's power state: NOSTATE for an unknown guest, SUSPENDED for one with a saved memory image."""

    @abstractmethod
    def spawn(self, guest: Guest, fetch: ImageSource, *, on: bool = True) -> None:
        """Build the guest: create its disk from the image, define it and, if `on`, power it on.

        Run again after a crash, it completes what is missing; a guest that runs and a disk that exists are left as they
        are. `fetch` is called only when the image is not in the host's image cache; parallel spawns of one image fetch
        it once. Raises ImageUnusable and InsufficientResources.
        """

    @abstractmethod
    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        """Power the guest off, undefine it, and delete its saved memory and, if `disk`, its disks. Unknown is success.

        A disk in a directory that hosts share stays while the guest lives on another host.
        """

    def shares_disk(self, uuid: str) -> bool:
        """Return whether this host sees the disk of a guest that lives on another host, in a shared directory."""
        return False

    @abstractmethod
    def power_on(self, guest: Guest) -> None:
        """Power the guest on: boot it, unpause it or restore its saved memory. Running is success.

        A lost definition is made again from `guest`. Raises GuestNotFound when the guest has no disk here.
        """

    @abstractmethod
    def power_off(self, uuid: str, timeout: float = 0.0, retry_interval: float = 10.0) -> ShutdownTimer | None:
        """Shut the guest down and return when it is off, by force after `timeout` seconds. Its disks stay.

        The guest is signalled every `retry_interval` seconds; a `timeout` of 0 cuts the power at once. A guest has one
        shutdown timer: a call while it runs joins it and keeps its deadline, and a `timeout` of 0 ends it now. Returns
        the ended timer; for a guest that is off already, that of its last shutdown or None. Off or unknown is success.
        """

    @abstractmethod
    def begin_shutdown(self, uuid: str, timeout: float, retry_interval: float) -> ShutdownTimer | None:
        """Begin what `power_off` does and return without waiting for the guest; `turn` continues it."""

    @abstractmethod
    def turn(self, uuid: str) -> ShutdownTimer | None:
        """Do what the guest's shutdown timer requires now: signal it, force it off, or record that it is off.

        Returns the timer as it is afterwards, or None when the guest has none. Does not wait for the guest.
        """

    @abstractmethod
    def stop_timer(self, uuid: str) -> None:
        """Give the shutdown up: the guest is not signalled again and stays on. No running timer is success."""

    @abstractmethod
    def force_off(self, uuid: str) -> None:
        """Cut the guest's power and discard its saved memory. Off or unknown is success. Does not change the timer."""

    @abstractmethod
    def timer(self, uuid: str) -> ShutdownTimer | None:
        """Return the timer of the guest's last shutdown; None for an unknown guest, and for one that has booted since.

        A start outside Stillwater counts too: an old timer must not cut the power of a guest that was started anew.
        """

    @abstractmethod
    def save_timer(self, uuid: str, timer: ShutdownTimer) -> None:
        """Store the timer with the guest, outside any database, for later processes to find. Raises GuestNotFound."""

    @abstractmethod
    def timers(self) -> dict[str, ShutdownTimer]:
        """Return the timers that run, by UUID."""

    @abstractmethod
    def how_ended(self, uuid: str) -> str:
        """Return how the guest went off: "guest" (it shut itself down), "forced" or "crashed"; "" if that is not known.

        An unknown guest is "gone". Raises HypervisorUnavailable when the hypervisor cannot tell whether the guest is
        on.
        """

    @abstractmethod
    def on_change(self, look: Callable[[str], None]) -> None:
        """Register `look(uuid)`, to be called at once when a guest changes; "" when any guest may have changed.

        `look` runs in a thread of the driver and must not block.
        """

    @abstractmethod
    def signal_shutdown(self, uuid: str) -> str:
        """Ask the guest once to shut down: through its agent if that answers, else with its power button.

        Returns "agent" or "acpi". Does not wait for the guest: while the hypervisor answers, it takes about two seconds
        at most. Not idempotent: each call is one more signal. Raises GuestNotFound, and GuestInvalidState when the
        guest is not running.
        """

    @abstractmethod
    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        """Return True as soon as the guest is off or unknown (by event where there are events), False after `seconds`.

        The hypervisor may be away meanwhile. Raises HypervisorUnavailable if it still is at the end.
        """

    @abstractmethod
    def reboot_hard(self, guest: Guest, mark: str = "") -> None:
        """Power the guest off and on with a new definition; its disks stay. Works from every power state.

        Saved memory is discarded, and a guest in rescue boots its own disk. `mark` names this reboot and is stored with
        the guest once it is off. Run again with the same mark, it leaves a running guest alone and only powers on one
        that is off. Without a mark every call is one more reboot. Raises GuestNotFound.
        """

    @abstractmethod
    def rebooted(self, uuid: str, mark: str) -> bool:
        """Return whether the last reboot had this mark and the guest runs since. False for an unknown guest."""

    @abstractmethod
    def pause(self, uuid: str) -> None:
        """Stop the guest's CPUs; its memory stays. Raises GuestNotFound, and GuestInvalidState when it is off."""

    @abstractmethod
    def unpause(self, uuid: str) -> None:
        """Continue a paused guest. Running is success. Raises GuestNotFound, and GuestInvalidState when it is off."""

    @abstractmethod
    def suspend(self, uuid: str) -> None:
        """Save the guest's memory to disk and power it off. Suspended is success.

        Raises GuestNotFound, and GuestInvalidState when the guest is off.
        """

    @abstractmethod
    def resume(self, guest: Guest) -> None:
        """Restore the guest from its saved memory. Running is success; a paused guest continues.

        Raises GuestNotFound, and GuestInvalidState when the guest is off and has no saved memory.
        """

    @abstractmethod
    def console_output(self, uuid: str) -> str:
        """Return the end of the serial console's output, as much as the host keeps. Raises GuestNotFound."""

    @abstractmethod
    def snapshot(self, uuid: str, target: Path) -> Image:
        """Write the guest's disk, as it is now, to `target` as one standalone qcow2 file.

        A running guest keeps running. Returns the disk_format, size and virtual_size of the file; `id` is "". Run
        again, it writes a new copy. Raises GuestNotFound.
        """

    @abstractmethod
    def rescue(self, guest: Guest, image: Image, fetch: ImageSource) -> None:
        """Boot the guest from a new disk made of `image`, with its own disk as the second one.

        In rescue and running is success. Every later start boots the rescue disk again, until `unrescue` or a hard
        reboot. Raises GuestNotFound and ImageUnusable.
        """

    @abstractmethod
    def unrescue(self, guest: Guest) -> None:
        """Power a guest in rescue off and delete the rescue disk: its next start boots its own disk.

        A guest that is not in rescue, or unknown, is left alone.
        """

    def power_update_event(self, uuid: str, said: PowerState) -> PowerState:
        """Handle a `power-update` event from the machine's controller; return the power state to record.

        `said` is RUNNING or SHUTDOWN. The event may arrive late, so the machine's present state is returned where it
        can be asked, else `said`. Never switches the machine. Raises NotSupported where no controller but the
        hypervisor switches guests ("Support server power state update through external event", Nova spec).
        """
        raise NotSupported(f"a {type(self).__name__} host accepts no power updates")

    def is_locked(self, uuid: str) -> bool:
        """Return whether another controller works on the guest's machine, so that its power state is not final."""
        return False

    def put_back(self, guest: Guest, *, on: bool) -> None:
        """Power a guest that another controller has switched on again, or off at once.

        Never waits for that controller's lock (as in Ironic): what it does now is newer than what the caller saw.
        Raises GuestLocked, and GuestNotFound.
        """
        if on:
            self.power_on(guest)
        else:
            self.power_off(guest.uuid)

    # -- migration, in this order: pre_migrate (destination), check_can_migrate and migrate_out (source),
    # finish_migration (destination), cleanup_source (source). To undo it: cancel_pre_migrate (destination), then
    # revert_migration (source). A driver without migration implements none of these.

    def pre_migrate(self, guest: Guest) -> Mapping[str, str]:
        """On the destination: prepare for the guest; return what its source host has to know about this host.

        Run again, it prepares anew: what an earlier stay of the guest left here is removed first. Raises VirtError when
        the guest lives on this host.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest from another host")

    def cancel_pre_migrate(self, uuid: str) -> None:
        """On the destination: remove everything of a guest that will not come. One that has settled here stays."""
        raise NotSupported(f"a {type(self).__name__} host expects no guest")

    def check_can_migrate(self, uuid: str, to: Mapping[str, str]) -> None:
        """On the source: check, before the guest is disturbed, that the destination is reachable. Raises VirtError."""
        raise NotSupported(f"a {type(self).__name__} host cannot hand a guest over")

    def migrate_out(self, guest: Guest, to: Mapping[str, str], watch: Watch) -> str:
        """On the source: move the guest, as it is now, to the host that expects it; a running guest keeps running.

        `to` is the result of `pre_migrate`. `watch` is called several times a second; its caller sets the time limit by
        returning ABORT or END_NOW. Returns a sentence for people about the migration. A guest that has moved already is
        success. Afterwards the guest is unknown here, and this host keeps enough for `revert_migration`. Raises
        MigrationAborted, and GuestInvalidState when the guest went off on its way.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot hand a guest over")

    def finish_migration(self, guest: Guest) -> None:
        """On the destination: make the guest that came a guest of this host, with a disk of `guest.disk_gb`.

        A disk only grows. A guest that lives here already is success. Raises GuestNotFound when the guest has not come.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest from another host")

    def revert_migration(self, guest: Guest) -> None:
        """On the source: take back a guest that has left and settled nowhere. A guest that lives here is success.

        Raises GuestNotFound for a guest that never left.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest back")

    def cleanup_source(self, uuid: str) -> None:
        """On the source: remove all that is left of a guest that has moved. A guest that lives here is left alone."""
        raise NotSupported(f"a {type(self).__name__} host hands no guest over")

    @abstractmethod
    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        """Register `callback`, to be called from a thread of the driver for each change that the hypervisor reports.

        When a lost connection is restored, the state of every guest is reported once, because events may have been
        missed.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the hypervisor. Guests keep running."""
