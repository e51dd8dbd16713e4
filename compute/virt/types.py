"""The data types and errors of the driver contract (`base.py`). Plain data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class PowerState(enum.IntEnum):
    """The power state of a guest, with Nova's numbers (`OS-EXT-STS:power_state`)."""

    NOSTATE = 0
    RUNNING = 1
    PAUSED = 3
    SHUTDOWN = 4
    CRASHED = 6
    SUSPENDED = 7


class VirtError(Exception):
    """The hypervisor failed or refused an operation. `retryable`: the same call may succeed later."""

    retryable = False


class GuestNotFound(VirtError):
    """The hypervisor does not know this guest."""


class GuestInvalidState(VirtError):
    """The guest is in a state that does not allow the operation, e.g. pause while it is off."""


class HypervisorUnavailable(VirtError):
    """The hypervisor does not answer. Its guests may be running."""

    retryable = True


class GuestLocked(VirtError):
    """Another controller works on the guest's machine and refuses all other changes meanwhile."""

    retryable = True


class InsufficientResources(VirtError):
    """The host lacks memory, disk or another resource; another host may have it."""


class ImageUnusable(VirtError):
    """The image cannot be fetched, or its content does not match its record."""


class OperationTimedOut(VirtError):
    """A call exceeded its time limit."""

    retryable = True


class NotSupported(VirtError):
    """This driver has no such operation."""


class MigrationAborted(VirtError):
    """A migration was aborted on request. The guest stays on its source host."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a host needs to know about an image; `size` and `virtual_size` in bytes."""

    id: str
    disk_format: str  # raw | qcow2
    size: int = 0
    checksum: str = ""  # md5 hex, as Glance keeps it; "" = not checked
    virtual_size: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    sole: bool = False  # for one guest only: the file becomes its disk, and no host caches it


@dataclass(frozen=True, slots=True)
class ShutdownPreference:
    """How a guest wants to be shut down; stored on its host, which may shut down while the database is away."""

    name: str
    seconds: int | None = None  # grace period; None: the operator's default
    priority: int = 0  # lower is shut down first


@dataclass(frozen=True, slots=True)
class Guest:
    """Everything needed to build one guest, and to make its definition again later."""

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
    shutdown_timeout: int | None = None  # seconds; None: the operator's default
    shutdown_priority: int = 0
    node: str = ""  # hypervisor_hostname of its node, present or chosen

    @property
    def shutdown_preference(self) -> ShutdownPreference:
        """The preference that the host stores for its own shutdown."""
        return ShutdownPreference(self.display_name, self.shutdown_timeout, self.shutdown_priority)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The capacity and properties of a node. Memory in MiB, disk in GiB, uptime in seconds."""

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
    is_whole: bool = False  # bare metal: one server takes the whole node
    resource_class: str = ""
    out_of_use: str = ""  # why it takes no new server, e.g. "maintenance: fan broken"


@dataclass(frozen=True, slots=True)
class GuestEvent:
    """A change that the hypervisor reports by itself (a guest powered off from inside, crashed, ...)."""

    uuid: str
    power_state: PowerState
    detail: str = ""  # e.g. "shutdown", "crashed", "destroyed"; for logs


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a migration. Bytes; a total of 0 means that the figure is not known."""

    memory_total: int = 0
    memory_left: int = 0
    disk_total: int = 0
    disk_left: int = 0
    seconds: float = 0.0


class Command(enum.Enum):
    """What a running migration has to do next."""

    GO_ON = "go on"
    ABORT = "abort"
    END_NOW = "end now"  # at any cost to the guest, e.g. a pause


# Called with a migration's progress two to five times a second; returns what the migration has to do next.
Watch = Callable[[Progress], Command]
MIGRATES = frozenset({"fake", "QEMU"})  # hypervisor types whose driver can migrate guests


# Writes the image's content to the path, or raises ImageUnusable.
ImageSource = Callable[[Path], None]
