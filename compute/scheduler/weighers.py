"""The scheduler's weighers: as in Nova each weight is normalised to 0..1, multiplied, and summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from zlib import crc32

from django.conf import settings

from compute.placement import server_groups
from compute.scheduler.host_state import HostState
from compute.scheduler.requirements import Requirements

WEIGHERS: dict[str, Callable[[HostState, Requirements], float]] = {
    "ram": lambda host, _: host.free_memory,
    "cpu": lambda host, _: host.free_cpus,
    "disk": lambda host, _: host.free_disk,
    "io_ops": lambda host, _: host.operations,
    "soft_affinity": lambda host, wanted: _members(host, wanted, server_groups.SOFT_AFFINITY),
    "soft_anti_affinity": lambda host, wanted: -_members(host, wanted, server_groups.SOFT_ANTI_AFFINITY),
}


def best_first(wanted: Requirements, hosts: Sequence[HostState]) -> list[HostState]:
    """Return the hosts by weight; ties by name, ties of bare-metal nodes in an order that differs per server."""
    totals = [0.0] * len(hosts)
    for name, weigh in WEIGHERS.items():
        for index, share in enumerate(_normalised([weigh(host, wanted) for host in hosts])):
            totals[index] += share * _multiplier(name, hosts[index])
    order = sorted(range(len(hosts)), key=lambda i: (-round(totals[i], 9), *_tie(hosts[i], wanted)))
    return [hosts[index] for index in order]


def _tie(host: HostState, wanted: Requirements) -> tuple[str, int, str]:
    """The order differs per server, so that servers created together do not all try the same node of a thousand."""
    name = host.node.hypervisor_hostname
    if host.node.is_whole:
        return "", crc32(f"{wanted.server_id}/{name}".encode()), name
    return host.host, 0, name


def _normalised(weights: list[float]) -> list[float]:
    least, most = min(weights), max(weights)
    return [(weight - least) / (most - least) if most > least else 0.0 for weight in weights]


def _multiplier(name: str, host: HostState) -> float:
    """The smallest multiplier that an aggregate of the host sets, else the setting."""
    said = []
    for metadata in host.aggregates:
        with suppress(ValueError, KeyError):
            said.append(float(metadata[f"{name}_weight_multiplier"]))
    return min(said) if said else float(settings.WEIGHT_MULTIPLIERS[name])


def _members(host: HostState, wanted: Requirements, policy: str) -> int:
    group = wanted.group
    return len(host.neighbours & group.others) if group is not None and group.policy == policy else 0
