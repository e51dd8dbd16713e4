"""A machine as Ironic describes it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compute.virt.base import HostFacts, PowerState, VirtError

POWER = {"power on": PowerState.RUNNING, "power off": PowerState.SHUTDOWN, "rebooting": PowerState.RUNNING}
OURS = "stillwater_host"  # key in instance_info: the host that deployed the server
# the fields for listing power states
LISTED = ("uuid", "instance_uuid", "power_state", "target_power_state", "reservation", "maintenance")
FIELDS = (
    *LISTED, "provision_state", "target_provision_state", "last_error", "maintenance_reason", "properties",
    "resource_class", "instance_info", "retired", "retired_reason",
)  # fmt: skip


class InMaintenance(VirtError):
    """The machine is in maintenance: an operator works on it, and it is not touched."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `server` is "" if it has none; `power` is None if Ironic could not read it."""

    id: str
    server: str
    power: str | None
    state: str
    error: str
    is_maintained: bool
    reason: str
    is_busy: bool  # Ironic holds its lock or changes its power, and refuses other changes
    is_retired: bool
    host: str  # the Stillwater host that deployed the server, else ""
    resource_class: str
    properties: Mapping[str, Any]

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Node:
        """Build a Node from Ironic's JSON; fields that were not requested are empty."""
        return cls(
            id=facts["uuid"],
            server=facts.get("instance_uuid") or "",
            power=facts.get("power_state"),
            state=facts.get("provision_state") or "available",
            error=facts.get("last_error") or "",
            is_maintained=bool(facts.get("maintenance")),
            reason=facts.get("maintenance_reason") or facts.get("retired_reason") or "",
            is_busy=bool(facts.get("reservation") or facts.get("target_power_state")),
            is_retired=bool(facts.get("retired")),
            host=str((facts.get("instance_info") or {}).get(OURS, "")),
            resource_class=facts.get("resource_class") or "",
            properties=facts.get("properties") or {},
        )

    @property
    def power_state(self) -> PowerState:
        """NOSTATE in maintenance: what the machine does then means nothing."""
        return PowerState.NOSTATE if self.is_maintained else POWER.get(self.power or "", PowerState.NOSTATE)

    def must_not_be_maintained(self) -> None:
        """Raise InMaintenance if the machine is in maintenance."""
        if self.is_maintained:
            why = f" ({self.reason})" if self.reason else ""
            raise InMaintenance(f"node {self.id} is in maintenance{why} and is left alone until that is over")

    def out_of_use(self, host: str) -> str:
        """Return why the node takes no new server of `host`; "" if it takes one or has one of this host."""
        why = f": {self.reason}" if self.reason else ""
        if self.is_maintained:
            return f"maintenance{why}"
        if self.is_retired:
            return f"retired{why}"
        if self.server:
            return "" if self.host == host else f"has instance {self.server} of others"
        if self.state != "available":
            return f"{self.state}: {self.error}" if self.error else self.state
        return ""

    def facts(self, host: str, version: int) -> HostFacts:
        """Return the node as a compute node of `host`, named after the machine's UUID."""
        return HostFacts(
            hypervisor_hostname=self.id,
            hypervisor_type="ironic",
            hypervisor_version=version,
            vcpus=self._number("cpus"),
            memory_mb=self._number("memory_mb"),
            disk_gb=self._number("local_gb"),
            cpu_info={"arch": str(self.properties.get("cpu_arch") or ""), "model": "", "vendor": "", "features": []},
            supports=frozenset({"shutdown_signal"}),
            is_whole=True,
            resource_class=self.resource_class,
            out_of_use=self.out_of_use(host),
        )

    def _number(self, name: str) -> int:
        """Return a property as a number. Ironic also stores text, and a machine never inspected has none: 0."""
        try:
            return int(self.properties.get(name) or 0)
        except (TypeError, ValueError):
            return 0
