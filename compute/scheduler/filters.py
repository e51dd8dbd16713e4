"""The scheduler's filters. Each has the text that a user reads when it leaves no host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from compute.contract import bare_metal
from compute.placement import server_groups
from compute.scheduler.extra_specs import matches, runs, version_fits
from compute.scheduler.host_state import HostState
from compute.scheduler.requirements import Requirements


class Filter(NamedTuple):
    """A filter and the text for users.

    `preference`: skipped when the host is forced. The other filters say what is impossible or must not be overridden.
    """

    words: str
    passes: Callable[[HostState, Requirements], bool]
    preference: bool = True


def passing(wanted: Requirements, every: list[HostState], avoid: frozenset[str]) -> tuple[list[HostState], str]:
    """Return the hosts that pass every filter; when none does, the text of the filter that left none."""
    wanted = _settled(wanted, every)
    hosts = [host for host in every if host.names.isdisjoint(avoid)]
    for words, passes, preference in FILTERS:
        if preference and wanted.forced:
            continue
        hosts = [host for host in hosts if passes(host, wanted)]
        if not hosts:
            return [], words
    return hosts, ""


def _is_like_the_image(host: HostState, wanted: Requirements) -> bool:
    """Architecture, type and version of the hypervisor, by the new and the old names of the image properties."""
    properties, cpu = wanted.image_properties, host.node.cpu_info
    arch = properties.get("hw_architecture") or properties.get("architecture")
    kind = properties.get("img_hv_type") or properties.get("hypervisor_type")
    version = properties.get("img_hv_requested_version") or properties.get("hypervisor_version_requires")
    return (
        (not arch or runs(str(cpu.get("arch", "")), arch))
        and (not kind or kind.lower() in _kinds(host))
        and (not version or version_fits(host.node.hypervisor_version, version))
    )


def _kinds(host: HostState) -> set[str]:
    """The names that images use for the hypervisor: QEMU with KVM has both."""
    return {host.node.hypervisor_type.lower(), str(host.node.cpu_info.get("virt_type", "")).lower()}


def _is_capable(host: HostState, wanted: Requirements) -> bool:
    """Extra specs like `capabilities:cpu_info:arch`."""
    node = host.node
    facts: dict[str, Any] = {
        "hypervisor_type": node.hypervisor_type, "hypervisor_version": node.hypervisor_version,
        "hypervisor_hostname": node.hypervisor_hostname, "vcpus_total": node.vcpus, "cpu_info": node.cpu_info,
    }  # fmt: skip
    return all(_has(facts, key.split(":"), asked) for key, asked in _scoped(wanted, "capabilities"))


def _has(facts: Any, path: list[str], asked: str) -> bool:
    for name in path:
        if not isinstance(facts, Mapping) or name not in facts:
            return False
        facts = facts[name]
    return matches(str(facts), asked)


def _is_in_such_an_aggregate(host: HostState, wanted: Requirements) -> bool:
    """Extra specs like `aggregate_instance_extra_specs:ssd`: compared with the key `ssd` of the host's aggregates."""
    return all(
        any(matches(one, asked) for one in _said(host, key))
        for key, asked in _scoped(wanted, "aggregate_instance_extra_specs")
    )


def _scoped(wanted: Requirements, scope: str) -> list[tuple[str, str]]:
    start = f"{scope}:"
    return [(key.removeprefix(start), asked) for key, asked in wanted.extra_specs.items() if key.startswith(start)]


def _said(host: HostState, key: str) -> list[str]:
    """Every value that the host's aggregates have for a key; a value may be a comma-separated list."""
    values = (str(metadata[key]) for metadata in host.aggregates if key in metadata)
    return [one.strip() for value in values for one in value.split(",")]


def _takes_the_project(host: HostState, wanted: Requirements) -> bool:
    """Aggregates with `filter_tenant_id` (or a key that begins with it) are for the listed projects only."""
    return all(
        any(wanted.project_id in str(value).replace(" ", "").split(",") for value in reserved)
        for metadata in host.aggregates
        if (reserved := [value for key, value in metadata.items() if key.startswith("filter_tenant_id")])
    )


def _is_apart(host: HostState, wanted: Requirements) -> bool:
    group = wanted.group
    if group is None or group.policy != server_groups.ANTI_AFFINITY:
        return True
    return len(host.neighbours & group.others) < group.most


def _settled(wanted: Requirements, hosts: list[HostState]) -> Requirements:
    """Set the home of an affinity group from where its members are on all hosts of the list.

    A server that moves has allocations on two hosts; then no host is the home.
    """
    group = wanted.group
    if group is None or group.policy != server_groups.AFFINITY:
        return wanted
    homes = sorted({host.host for host in hosts if host.neighbours & group.others})
    return replace(wanted, group=replace(group, home=" and ".join(homes)))


def _is_at_home(host: HostState, wanted: Requirements) -> bool:
    group = wanted.group
    return group is None or group.policy != server_groups.AFFINITY or group.home in ("", host.host)


def _is_such_a_machine(host: HostState, wanted: Requirements) -> bool:
    """A bare-metal node of the wanted resource class; a virtual machine is placed on no bare-metal node."""
    node = host.node
    if not wanted.resource_class:
        return not node.is_whole
    return node.is_whole and bare_metal.normalised(node.resource_class) == wanted.resource_class


# The filters for the requested zone and host come first, so that the text names what is wrong with that host.
FILTERS = (
    Filter("availability zone", lambda host, wanted: wanted.availability_zone in ("", host.zone)),
    Filter("host", lambda host, wanted: wanted.host in ("", host.host), preference=False),
    Filter(
        "hypervisor", lambda host, wanted: wanted.hypervisor_hostname in ("", host.node.hypervisor_hostname),
        preference=False,
    ),
    Filter("resource class of the flavor", _is_such_a_machine, preference=False),
    Filter("up", lambda host, _: host.up, preference=False),
    Filter("enabled", lambda host, _: host.enabled),
    Filter("not draining", lambda host, _: not host.draining, preference=False),
    Filter(
        "service version (the hosts are not upgraded yet)", lambda host, wanted: host.version >= wanted.service_version,
        preference=False,
    ),
    Filter("machines that are free", lambda host, _: not host.is_taken, preference=False),
    Filter("not in maintenance or cleaning", lambda host, _: not host.node.out_of_use, preference=False),
    Filter("same_host", lambda host, wanted: not wanted.same_host or bool(wanted.same_host & host.neighbours)),
    Filter("different_host", lambda host, wanted: not wanted.different_host & host.neighbours),
    Filter("image properties", _is_like_the_image),
    Filter("capabilities in the flavor's extra specs", _is_capable),
    Filter("aggregate_instance_extra_specs of the flavor", _is_in_such_an_aggregate),
    Filter("aggregates that are for other projects", _takes_the_project),
    Filter("server group affinity", _is_at_home, preference=False),
    Filter("server group anti-affinity", _is_apart, preference=False),
    Filter("CPUs", lambda host, wanted: host.node.is_whole or host.free_cpus >= wanted.vcpus, preference=False),
    Filter("memory", lambda host, wanted: host.node.is_whole or host.free_memory >= wanted.memory_mb, preference=False),
    Filter("disk", lambda host, wanted: host.node.is_whole or host.free_disk >= wanted.disk_gb, preference=False),
)
