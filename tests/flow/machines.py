"""A host of bare metal beside those of virtual machines, for the stories of both."""

from __future__ import annotations

from typing import Any

from cells.context import target_cell
from compute.models import Allocation, ComputeNode, Flavor
from tests.byhand import Cloud, Host

GOLD = {"resources:CUSTOM_BAREMETAL_GOLD": "1", "resources:VCPU": "0"}


def flavor(flavor_id: str = "gold", **specs: str) -> Flavor:
    """One machine, however large it is."""
    return Flavor.objects.create(
        flavor_id=flavor_id, name=flavor_id, vcpus=1, memory_mb=8192, disk_gb=1, extra_specs=specs or GOLD
    )


def add(cloud: Cloud, count: int, name: str = "metal", cell: str = "cell1") -> Host:
    """A host that serves so many machines of the class baremetal.gold."""
    return cloud.add_host(name, cell, nodes=count, resource_class="baremetal.gold", vcpus=8, memory_mb=4096)


def nodes(host: Host) -> dict[str, ComputeNode]:
    """What is on record of a host's nodes."""
    with target_cell(host.cell):
        return {node.hypervisor_hostname: node for node in ComputeNode.objects.filter(host=host.name)}


def held(host: Host) -> dict[str, list[str]]:
    """The servers that hold each of a host's nodes."""
    with target_cell(host.cell):
        rows: Any = Allocation.objects.filter(node__host=host.name).order_by("pk")
        found: dict[str, list[str]] = {}
        for node, server_id in rows.values_list("node__hypervisor_hostname", "server_id"):
            found.setdefault(node, []).append(server_id)
        return found
