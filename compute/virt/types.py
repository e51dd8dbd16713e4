"""What Stillwater and a hypervisor speak of: guests, their states, and what can go wrong with them. Plain data."""

from __future__ import annotations

import enum
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


class GuestLocked(VirtError):
    """Another controller is doing something with the guest's machine, and refuses all others meanwhile."""

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


class MigrationAborted(VirtError):
    """A migration ended early, because it was told to. The guest runs on where it was."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a host needs to know of an image; `size` and `virtual_size` in bytes."""

    id: str
    disk_format: str  # raw | qcow2
    size: int = 0
    checksum: str = ""  # md5 hex, as Glance keeps it; "" = not checked
    virtual_size: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    sole: bool = False  # one guest's alone: it becomes that guest's disk, and no host keeps it


@dataclass(frozen=True, slots=True)
class ShutdownPreference:
    """How a guest wants to be shut down; kept on its host, for when nobody can be asked. `seconds` None: as all."""

    name: str
    seconds: int | None = None
    priority: int = 0  # lower goes first


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
    shutdown_timeout: int | None = None  # None: the operator's
    shutdown_priority: int = 0
    node: str = ""  # hypervisor_hostname of where it is, or is to be

    @property
    def shutdown_preference(self) -> ShutdownPreference:
        """What its host keeps for the day it goes down itself."""
        return ShutdownPreference(self.display_name, self.shutdown_timeout, self.shutdown_priority)


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
    is_whole: bool = False  # bare metal: one server has all of it
    resource_class: str = ""
    out_of_use: str = ""  # why it takes no new server, e.g. "maintenance: fan broken"


@dataclass(frozen=True, slots=True)
class GuestEvent:
    """A change the hypervisor noticed by itself (a guest powered off from inside, crashed, ...)."""

    uuid: str
    power_state: PowerState
    detail: str = ""  # e.g. "shutdown", "crashed", "destroyed"; for logs


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a guest is on its way. Bytes; 0 of 0 is not known."""

    memory_total: int = 0
    memory_left: int = 0
    disk_total: int = 0
    disk_left: int = 0
    seconds: float = 0.0


class Command(enum.Enum):
    """What becomes of a migration that is under way."""

    GO_ON = "go on"
    ABORT = "abort"
    END_NOW = "end now"  # whatever it costs the guest, e.g. a pause


# Shown how far a migration is, about twice a second; answers what becomes of it.
Watch = Callable[[Progress], Command]
MIGRATES = frozenset({"fake", "QEMU"})  # hypervisor types whose driver can hand guests over to another host


# Writes the image's bytes to the path, or raises ImageUnusable.
ImageSource = Callable[[Path], None]
