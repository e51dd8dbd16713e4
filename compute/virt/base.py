"""The contract between Stillwater and a hypervisor: plain Python, no Django, no Celery.

Every verb is idempotent (asking for what is already so is success), bounded in time, and raises
only the `VirtError` kinds below. The same contract suite (`tests/virt/`) runs on every driver.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class PowerState(enum.IntEnum):
    """What the hypervisor says a guest is doing; numbers as in `OS-EXT-STS:power_state`."""

    NOSTATE = 0
    RUNNING = 1
    PAUSED = 3
    SHUTDOWN = 4
    CRASHED = 6
    SUSPENDED = 7


class VirtError(Exception):
    """Something the hypervisor could not do. `retryable`: the same call may work later."""

    retryable = False


class GuestNotFound(VirtError):
    """The hypervisor does not know this guest."""


class GuestInvalidState(VirtError):
    """The guest exists but cannot do this now, e.g. pause while shut down."""


class HypervisorUnavailable(VirtError):
    """The hypervisor does not answer. Guests may well be running."""

    retryable = True


class InsufficientResources(VirtError):
    """The host is out of memory, disk or another resource; another host may do."""


class ImageUnusable(VirtError):
    """The image could not be fetched, or its content is not what its record says."""


class OperationTimedOut(VirtError):
    """A bounded call ran out of its time."""

    retryable = True


class NotSupported(VirtError):
    """This driver cannot do this at all."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a host needs to know of an image; `size` and `virtual_size` in bytes."""

    id: str
    disk_format: str  # raw | qcow2
    size: int = 0
    checksum: str = ""  # md5 hex, as Glance keeps it; "" = not checked
    virtual_size: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guest:
    """Everything needed to build one guest, and to rebuild its definition later."""

    uuid: str
    name: str  # the hypervisor's name for it, e.g. instance-0000002a
    display_name: str
    vcpus: int
    memory_mb: int
    disk_gb: int  # 0 = as large as the image
    image: Image
    network: str = "none"  # none | user (libvirt's user-mode network)
    mac_address: str = ""
    project_id: str = ""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a hypervisor offers. Memory in MiB, disk in GiB, uptime in seconds."""

    hypervisor_hostname: str
    hypervisor_type: str  # QEMU, fake, ...
    hypervisor_version: int  # e.g. 7002022 for 7.2.22, as libvirt counts
    vcpus: int
    memory_mb: int
    disk_gb: int
    host_ip: str = "127.0.0.1"
    cpu_info: Mapping[str, object] = field(default_factory=dict)
    uptime_seconds: int = 0
    supports: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GuestEvent:
    """A change the hypervisor noticed by itself (a guest powered off from inside, crashed, ...)."""

    uuid: str
    power_state: PowerState
    detail: str = ""  # e.g. "shutdown", "crashed", "destroyed"; for logs


# Writes the image's bytes to the path, or raises ImageUnusable.
ImageSource = Callable[[Path], None]


class Driver(ABC):
    """One hypervisor. All verbs may be called from many threads at once, on different guests."""

    @abstractmethod
    def facts(self) -> HostFacts:
        """What this host offers, read afresh."""

    @abstractmethod
    def guests(self) -> dict[str, PowerState]:
        """Every guest of ours on this host, in one hypervisor call."""

    @abstractmethod
    def power_state(self, uuid: str) -> PowerState:
        """NOSTATE when the guest is unknown. A guest with a saved memory image is SUSPENDED."""

    @abstractmethod
    def spawn(self, guest: Guest, fetch: ImageSource) -> None:
        """Disk from the image, definition, power on. Run again after a crash it completes.

        `fetch` is called only when the image is not in the host's cache; parallel spawns of one
        image fetch it once. Raises ImageUnusable, InsufficientResources.
        """

    @abstractmethod
    def destroy(self, uuid: str) -> None:
        """Off, undefined, disks and saved memory gone. Unknown is success."""

    @abstractmethod
    def power_on(self, guest: Guest) -> None:
        """Running is success; a guest that is off boots; a lost definition is made anew."""

    @abstractmethod
    def power_off(self, uuid: str) -> None:
        """Pull the plug. Off or unknown is success. Disks stay."""

    @abstractmethod
    def signal_shutdown(self, uuid: str) -> str:
        """Press the power button once; how it was signalled ("acpi" or "agent"). Does not wait.

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
    def console_output(self, uuid: str, length: int | None = None) -> str:
        """The last `length` lines of the serial console (all that is kept if None)."""

    @abstractmethod
    def snapshot(self, uuid: str, target: Path) -> Image:
        """Write the guest's disk, as it is now, to `target` as one standalone qcow2 file.

        A running guest keeps running. Returns what was written (disk_format, size, virtual_size);
        `id` is "". Run again it writes anew.
        """

    @abstractmethod
    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        """Call back, from a thread of the driver's own, for each change noticed by itself.

        After a lost connection is back, the state of every guest is reported once (events may have
        been missed).
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the hypervisor. Guests keep running."""
