"""What a libvirt host offers, read afresh."""

from __future__ import annotations

import os
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
    """Asks libvirt and the file system; callers translate libvirt's errors."""
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
        uptime_seconds=int(float(Path("/proc/uptime").read_text().split()[0])),
        supports=SUPPORTS,
    )


def _memory_mb(connection: libvirt.virConnect) -> int:
    """As /proc/meminfo has it: getInfo() adds up NUMA cells and said 5.8 of 24 GB on a VM."""
    total = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)["total"]
    return int(total) >> 10


def _cpu(connection: libvirt.virConnect, arch: str) -> dict[str, object]:
    """In the shape Nova's `cpu_info` has."""
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
