"""Which host takes a server: filters, a weigher, and a claim that settles all races."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from compute import claims
from compute.errors import NoValidHost
from compute.models import ComputeNode, Instance, Service
from compute.models.host import COMPUTE

CANDIDATES = 50  # best hosts tried before giving up


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server needs of its host."""

    server_id: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    availability_zone: str = ""
    host: str = ""
    hypervisor_hostname: str = ""

    @classmethod
    def of_instance(cls, instance: Instance, destination: Mapping[str, str]) -> Wanted:
        """For a server that has its row already."""
        return cls(instance.uuid, instance.vcpus, instance.memory_mb, instance.disk_gb, **destination)

    def destination(self) -> dict[str, str]:
        """Where the user wants it, also when it has to move on from a host that failed."""
        return {
            "availability_zone": self.availability_zone,
            "host": self.host,
            "hypervisor_hostname": self.hypervisor_hostname,
        }


@dataclass(frozen=True, slots=True)
class HostState:
    """A host as it was a moment ago. The claim decides whether it still is."""

    host: str
    node: ComputeNode
    zone: str
    up: bool
    enabled: bool
    draining: bool = False
    cell_id: str = ""

    @property
    def free_memory(self) -> float:
        """MiB that may still be sold."""
        return self.node.memory_mb * self.node.ram_ratio - self.node.memory_mb_used


def read_hosts(cell_id: str = "") -> list[HostState]:
    """Every host of the targeted cell, in two queries."""
    services = {s.host: s for s in Service.objects.filter(binary=COMPUTE)}
    return [
        HostState(
            node.host, node, service.availability_zone,
            up=service.last_seen_up is not None and service.is_up, enabled=not service.disabled,
            draining=bool(service.drain_state), cell_id=cell_id,
        )
        for node in ComputeNode.objects.all()
        if (service := services.get(node.host)) is not None
    ]  # fmt: skip


FILTERS: dict[str, Callable[[HostState, Wanted], bool]] = {
    # Where the user wants it comes first, so that what is wrong with that very host is named.
    "availability zone": lambda host, wanted: wanted.availability_zone in ("", host.zone),
    "host": lambda host, wanted: wanted.host in ("", host.host),
    "hypervisor": lambda host, wanted: wanted.hypervisor_hostname in ("", host.node.hypervisor_hostname),
    "up": lambda host, wanted: host.up,
    "enabled": lambda host, wanted: host.enabled,
    "not draining": lambda host, wanted: not host.draining,
    "CPUs": lambda host, wanted: _fits(host.node.vcpus, host.node.cpu_ratio, host.node.vcpus_used, wanted.vcpus),
    "memory": lambda host, wanted: host.free_memory >= wanted.memory_mb,
    "disk": lambda host, wanted: _fits(
        host.node.disk_gb, host.node.disk_ratio, host.node.disk_gb_used, wanted.disk_gb
    ),
}


def rank(wanted: Wanted, hosts: Iterable[HostState], avoid: frozenset[str] = frozenset()) -> list[HostState]:
    """Hosts that pass every filter, the emptiest first. Raises NoValidHost naming the last filter."""
    left = [host for host in hosts if host.host not in avoid]
    if not left:
        raise NoValidHost("No valid host was found. There are no hosts left to try.")
    for name, passes in FILTERS.items():
        left = [host for host in left if passes(host, wanted)]
        if not left:
            raise NoValidHost(f"No valid host was found. No host passed the filter for: {name}.")
    return sorted(left, key=lambda host: (-host.free_memory, host.host))[:CANDIDATES]


def claim_best(wanted: Wanted, hosts: Iterable[HostState], avoid: frozenset[str] = frozenset()) -> ComputeNode:
    """Claim room on the best host of the targeted cell. Raises NoValidHost. In the caller's transaction."""
    for host in rank(wanted, hosts, avoid):
        if claims.claim(wanted.server_id, host.node, wanted.vcpus, wanted.memory_mb, wanted.disk_gb):
            return host.node
    raise NoValidHost("No valid host was found. Every host that fitted was taken meanwhile.")


def _fits(total: int, ratio: float, used: int, wanted: int) -> bool:
    return total * ratio - used >= wanted
