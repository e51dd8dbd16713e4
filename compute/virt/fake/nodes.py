"""The nodes a fake host serves: one, or many, as the worker of a bare-metal service does."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from uuid import NAMESPACE_URL, uuid5

from compute.virt.types import HostFacts, InsufficientResources


class Nodes:
    """Each of the size the host's facts say. With a resource class each is a machine, and one guest's."""

    def __init__(self, count: int = 1, resource_class: str = "") -> None:
        self._count, self.resource_class = count, resource_class
        self._lock = threading.Lock()
        self._out_of_use: dict[str, str] = {}
        self._missing: set[str] = set()

    def of(self, facts: HostFacts) -> list[HostFacts]:
        """All that are there, always with the same names."""
        if self._count == 1 and not self.resource_class:
            return [facts]
        with self._lock:
            return [self._node(facts, name) for name in self._names(facts) if name not in self._missing]

    def take_out_of_use(self, node: str, why: str = "") -> None:
        """Into maintenance, and out of it with no reason."""
        with self._lock:
            self._out_of_use[node] = why

    def remove(self, node: str) -> None:
        """It is not there any more."""
        with self._lock:
            self._missing.add(node)

    def put_back(self, node: str) -> None:
        """It is there again."""
        with self._lock:
            self._missing.discard(node)

    def must_be_free(self, node: str, uuid: str, placed: Mapping[str, str]) -> None:
        """A machine has one guest. `placed`: node by guest. Raises InsufficientResources."""
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
