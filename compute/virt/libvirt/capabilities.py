"""The capacity and properties of a libvirt host."""

from __future__ import annotations

import os
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt

from compute.virt.base import HostFacts

SUPPORTS = frozenset(
    {"pause", "suspend", "snapshot", "live_snapshot", "console_output", "shutdown_signal", "live_migrate", "migrate"}
)


def facts(
    connection: libvirt.virConnect, state_dir: Path, *, hostname: str, host_ip: str, virt_type: str
) -> HostFacts:
    """Read them from libvirt and the file system. Raises libvirt's own errors; the caller translates them."""
    model, _, vcpus, *_ = connection.getInfo()
    storage = os.statvfs(state_dir)
    return HostFacts(
        hypervisor_hostname=hostname or connection.getHostname(),
        hypervisor_type="QEMU" if connection.getType() == "QEMU" else connection.getType(),
        hypervisor_version=connection.getVersion(),
        vcpus=vcpus,
        memory_mb=_memory_mb(connection),
        disk_gb=storage.f_blocks * storage.f_frsize >> 30,
        host_ip=host_ip,
        cpu_info=_cpu(connection, model) | {"virt_type": virt_type},
        uptime_seconds=int(time.clock_gettime(time.CLOCK_BOOTTIME)),
        supports=SUPPORTS,
    )


def _memory_mb(connection: libvirt.virConnect) -> int:
    """Return the total as in /proc/meminfo: getInfo() adds up NUMA cells and gave 5.8 of 24 GB on a VM."""
    total = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)["total"]
    return int(total) >> 10


def _cpu(connection: libvirt.virConnect, arch: str) -> dict[str, object]:
    """Return the CPU in the format of Nova's `cpu_info`."""
    cpu = ET.fromstring(connection.getCapabilities()).find("host/cpu")  # noqa: S314 - libvirt's own
    if cpu is None:
        return {"arch": arch, "model": "", "vendor": "", "features": [], "topology": {}}
    topology = cpu.find("topology")
    sizes = ("sockets", "dies", "cores", "threads")
    return {
        "arch": cpu.findtext("arch", arch),
        "model": cpu.findtext("model", ""),
        "vendor": cpu.findtext("vendor", ""),
        "features": sorted(feature.get("name", "") for feature in cpu.findall("feature")),
        "topology": {}
        if topology is None
        else {size: int(topology.get(size, "1")) for size in sizes if topology.get(size)},
    }
