"""The contract between Stillwater and a hypervisor: plain Python, no Django, no Celery.

Every verb is idempotent (asking for what is already so is success), bounded in time, and raises only the `VirtError`
kinds. What the verbs speak of is in `kinds.py`. The same contract suite (`tests/virt/`) runs on every driver.
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
    """One hypervisor. All verbs may be called from many threads at once, on different guests."""

    guests_live_elsewhere: bool = False  # machines: they stay on when the one this worker runs on goes down

    @abstractmethod
    def facts(self) -> HostFacts:
        """What this host offers, read afresh."""

    def nodes(self) -> list[HostFacts]:
        """Every node this host serves, in one call. Most hosts are their only node."""
        return [self.facts()]

    @abstractmethod
    def guests(self) -> dict[str, PowerState]:
        """Every guest of ours on this host, in one hypervisor call. NOSTATE while another controller switches it."""

    @abstractmethod
    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        """Of every guest of ours that is on, paused ones among them: what was known when it was last started."""

    @abstractmethod
    def power_state(self, uuid: str) -> PowerState:
        """NOSTATE when the guest is unknown. A guest with a saved memory image is SUSPENDED."""

    @abstractmethod
    def spawn(self, guest: Guest, fetch: ImageSource, *, on: bool = True) -> None:
        """Disk from the image, definition, power on unless `on` is false. Run again after a crash it completes.

        A disk that is here stays as it is.

        `fetch` is called only when the image is not in the host's cache; parallel spawns of one
        image fetch it once. Raises ImageUnusable, InsufficientResources.
        """

    @abstractmethod
    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        """Off, undefined, saved memory gone, and its disks unless `disk` is false. Unknown is success.

        Disks in a folder that hosts share stay while the guest lives on another one.
        """

    def shares_disk(self, uuid: str) -> bool:
        """Whether the disk of a guest that lives on another host is here, too: they share the folder it is in."""
        return False

    @abstractmethod
    def power_on(self, guest: Guest) -> None:
        """Running is success; a guest that is off boots; a lost definition is made anew."""

    @abstractmethod
    def power_off(self, uuid: str, timeout: float = 0.0, retry_interval: float = 10.0) -> ShutdownTimer | None:
        """Off when this returns: by itself within `timeout` seconds, signalled every `retry_interval`, else by force.

        0 pulls the plug at once. Off or unknown is success (None). Disks stay. A guest has one clock: whoever asks
        while it runs joins it, or ends it with a timeout of 0.
        """

    @abstractmethod
    def begin_shutdown(self, uuid: str, timeout: float, retry_interval: float) -> ShutdownTimer | None:
        """The beginning of `power_off`, for those who do not wait: `turn` is what goes on with it."""

    @abstractmethod
    def turn(self, uuid: str) -> ShutdownTimer | None:
        """Do what is due for a guest that is being shut down: signal it, force it off, see that it is off."""

    @abstractmethod
    def stop_timer(self, uuid: str) -> None:
        """The shutdown is given up: the guest is signalled no more, and stays on. No clock is success."""

    @abstractmethod
    def force_off(self, uuid: str) -> None:
        """Pull the plug. Off or unknown is success."""

    @abstractmethod
    def timer(self, uuid: str) -> ShutdownTimer | None:
        """The clock kept with a guest since it was last asked to shut down; None if it is unknown.

        Nor if it booted since, whoever did that: an old clock must not pull the plug of a new start.
        """

    @abstractmethod
    def save_timer(self, uuid: str, timer: ShutdownTimer) -> None:
        """Keep it where every later process finds it, without any database. Raises GuestNotFound."""

    @abstractmethod
    def timers(self) -> dict[str, ShutdownTimer]:
        """Those that run."""

    @abstractmethod
    def how_ended(self, uuid: str) -> str:
        """How a guest went off: guest (it shut itself down), forced, crashed; gone; "" if nobody knows."""

    @abstractmethod
    def on_change(self, look: Callable[[str], None]) -> None:
        """Call `look(uuid)` the moment anything happens to a guest; "" when anything may have. It must be quick."""

    @abstractmethod
    def signal_shutdown(self, uuid: str) -> str:
        """Ask the guest once to shut down: its agent if that answers, else its power button.

        How it was signalled: "agent" or "acpi", in two seconds at most. Does not wait for the guest.
        Raises GuestInvalidState when the guest is not running.
        """

    @abstractmethod
    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        """True the moment the guest is off (by event, not by polling), False after `seconds`."""

    @abstractmethod
    def reboot_hard(self, guest: Guest, mark: str = "") -> None:
        """Off and on again, definition made anew, disks kept. Works from every power state.

        `mark` names this reboot, and is kept with the guest from the moment it is off. Asked again with
        the same mark, a guest that runs is left alone, and one that is off is only powered on.
        """

    @abstractmethod
    def rebooted(self, uuid: str, mark: str) -> bool:
        """Whether the reboot of this mark was the last one, and the guest runs since. Unknown is no."""

    @abstractmethod
    def pause(self, uuid: str) -> None:
        """Freeze the CPUs; memory stays. Raises GuestInvalidState when it is off."""

    @abstractmethod
    def unpause(self, uuid: str) -> None:
        """Let a paused guest go on. Running is success."""

    @abstractmethod
    def suspend(self, uuid: str) -> None:
        """Memory to disk, then off. Already saved is success. Raises GuestInvalidState when off."""

    @abstractmethod
    def resume(self, guest: Guest) -> None:
        """From saved memory back to running. Running is success."""

    @abstractmethod
    def console_output(self, uuid: str) -> str:
        """What the serial console has said, as far as it is kept."""

    @abstractmethod
    def snapshot(self, uuid: str, target: Path) -> Image:
        """Write the guest's disk, as it is now, to `target` as one standalone qcow2 file.

        A running guest keeps running. Returns what was written (disk_format, size, virtual_size);
        `id` is "". Run again it writes anew.
        """

    @abstractmethod
    def rescue(self, guest: Guest, image: Image, fetch: ImageSource) -> None:
        """Boot a fresh disk of `image`, with the guest's own disk as the second. In rescue and running is success.

        From then on the guest boots so, whoever powers it on, until `unrescue` or a hard reboot.
        """

    @abstractmethod
    def unrescue(self, guest: Guest) -> None:
        """Off, and to boot its own disk again; the rescue disk is gone. One that is not in rescue is left alone."""

    def power_update_event(self, uuid: str, said: PowerState) -> PowerState:
        """Who has charge of the machine says that it was switched: RUNNING or SHUTDOWN. What to put on record.

        That is what the machine does now, where it can be asked, for a word may come late; else what was said.
        Nothing is done to the machine. Raises NotSupported where nobody but the hypervisor knows (spec 5).
        """
        raise NotSupported(f"a {type(self).__name__} host takes nobody's word for a guest's power state")

    def is_locked(self, uuid: str) -> bool:
        """Whether another controller is doing something with the guest's machine: its power state is not final."""
        return False

    def put_back(self, guest: Guest, *, on: bool) -> None:
        """`power_on`, or `power_off` at once, of a guest that another controller switched.

        Where that controller locks machines, as Ironic does, nothing waits for its lock: what it is doing is newer
        than what the caller saw. Raises GuestLocked; GuestNotFound.
        """
        if on:
            self.power_on(guest)
        else:
            self.power_off(guest.uuid)

    # -- from host to host: pre_migrate (destination), migrate_out (source), finish_migration (destination),
    # cleanup_source (source); back again: cancel_pre_migrate (destination), revert_migration (source). A driver that
    # cannot do this has none.

    def pre_migrate(self, guest: Guest) -> Mapping[str, str]:
        """Make ready for a guest that will come; what its present host has to know of us. Again is success.

        What an earlier stay of this guest left here is cleaned up first.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest from another host")

    def cancel_pre_migrate(self, uuid: str) -> None:
        """It does not come: nothing of it is left here. A guest that has settled stays."""
        raise NotSupported(f"a {type(self).__name__} host expects no guest")

    def check_can_migrate(self, uuid: str, to: Mapping[str, str]) -> None:
        """Look whether the host that expects a guest can be reached from here, before the guest is disturbed.

        Raises VirtError.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot hand a guest over")

    def migrate_out(self, guest: Guest, to: Mapping[str, str], watch: Watch) -> str:
        """Give the guest, as it is now, to the host that expects it; running if it runs. How it went, for people.

        Gone already is success. What stays here is no guest any more, and enough for `revert_migration`. Raises
        MigrationAborted; GuestInvalidState when the guest went off by itself on its way.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot hand a guest over")

    def finish_migration(self, guest: Guest) -> None:
        """The guest that came lives here from now on, and its disk has the size it says; a disk only grows.

        Here already is success. Raises GuestNotFound.
        """
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest from another host")

    def revert_migration(self, guest: Guest) -> None:
        """A guest that was handed over, and settled nowhere, lives here again. Here already is success."""
        raise NotSupported(f"a {type(self).__name__} host cannot take a guest back")

    def cleanup_source(self, uuid: str) -> None:
        """Nothing is left of a guest that was handed over. A guest that lives here is left alone."""
        raise NotSupported(f"a {type(self).__name__} host hands no guest over")

    @abstractmethod
    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        """Call back, from a thread of the driver's own, for each change noticed by itself.

        After a lost connection is back, the state of every guest is reported once (events may have
        been missed).
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the hypervisor. Guests keep running."""
