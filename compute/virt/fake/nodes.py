"""The nodes of a fake host: one, or many as in a bare-metal service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from uuid import NAMESPACE_URL, uuid5

from compute.virt.types import HostFacts, InsufficientResources


class Nodes:
    """Nodes of the size that the host's facts say. With a resource class each node is a machine for one guest."""

    def __init__(self, count: int = 1, resource_class: str = "") -> None:
        self._count, self.resource_class = count, resource_class
        self._lock = threading.Lock()
        self._out_of_use: dict[str, str] = {}
        self._missing: set[str] = set()

    def of(self, facts: HostFacts) -> list[HostFacts]:
        """Return the nodes that exist; their names never change."""
        if self._count == 1 and not self.resource_class:
            return [facts]
        with self._lock:
            return [self._node(facts, name) for name in self._names(facts) if name not in self._missing]

    def take_out_of_use(self, node: str, why: str = "") -> None:
        """Put a node into maintenance for the reason `why`; "" ends the maintenance."""
        with self._lock:
            self._out_of_use[node] = why

    def remove(self, node: str) -> None:
        """Make the node vanish."""
        with self._lock:
            self._missing.add(node)

    def put_back(self, node: str) -> None:
        """Make a removed node appear again."""
        with self._lock:
            self._missing.discard(node)

    def must_be_free(self, node: str, uuid: str, placed: Mapping[str, str]) -> None:
        """Raise InsufficientResources when the machine has another guest. `placed`: node of each guest."""
        others = [guest for guest, where in placed.items() if where == node and guest != uuid]
        if others:
            raise InsufficientResources(f"node {node} is guest {others[0]}'s")

    def _names(self, facts: HostFacts) -> list[str]:
        numbered = [f"{facts.hypervisor_hostname}-{number}" for number in range(1, self._count + 1)]
        return [str(uuid5(NAMESPACE_URL, name)) for name in numbered] if self.resource_class else numbered

    def _node(self, facts: HostFacts, name: str) -> HostFacts:
        return replace(
            facts, hypervisor_hostname=name, is_whole=bool(self.resource_class), resource_class=self.resource_class,
            out_of_use=self._out_of_use.get(name, ""),
        )  # fmt: skip
