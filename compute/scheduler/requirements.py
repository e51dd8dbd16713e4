"""What a server needs of its host: size, zone, image properties, extra specs, scheduler hints, server group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cells.models import BuildRequest, RequestSpec
from compute.contract import bare_metal
from compute.models import Instance
from compute.placement import server_groups
from compute.placement.server_groups import Group

SIZE = ("vcpus", "memory_mb", "disk_gb")


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a server needs of its host. `forced`: named by force; filters marked `preference` are skipped."""

    server_id: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    availability_zone: str = ""
    host: str = ""
    hypervisor_hostname: str = ""
    forced: bool = False
    project_id: str = ""
    image_properties: Mapping[str, str] = field(default_factory=dict)
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    same_host: frozenset[str] = frozenset()  # on the host of one of these servers
    different_host: frozenset[str] = frozenset()  # not on the host of any of these servers
    group: Group | None = None
    service_version: int = 1  # of the host: older ones do not know the steps that will run there

    def destination(self) -> dict[str, Any]:
        """Return where the user wants the server; kept in the params, as another host may have to be found later."""
        return {
            "availability_zone": self.availability_zone,
            "host": self.host,
            "hypervisor_hostname": self.hypervisor_hostname,
            "forced": self.forced,
        }

    @property
    def resource_class(self) -> str:
        """The wanted resource class of bare metal; empty for a virtual machine."""
        return bare_metal.wanted_class(self.extra_specs)

    @property
    def neighbours(self) -> frozenset[str]:
        """The servers whose location matters."""
        return self.same_host | self.different_host | (self.group.others if self.group else frozenset())


def of_request(request: BuildRequest, spec: RequestSpec, service_version: int) -> Requirements:
    """Return the requirements of a server that is in no cell yet. Reads the global database."""
    return Requirements(
        spec.server_id, spec.vcpus, spec.memory_mb, spec.disk_gb, spec.availability_zone, spec.host,
        spec.hypervisor_hostname, forced=bool(request.action.get("forced")), project_id=spec.project_id,
        image_properties=_properties(request.instance.get("image", {})), extra_specs=_specs(spec.flavor),
        service_version=service_version, **_from_hints(spec.server_id, spec.scheduler_hints),
    )  # fmt: skip


def of_instance(
    instance: Instance, destination: Mapping[str, Any], size: Mapping[str, Any] | None = None
) -> Requirements:
    """Return the requirements of a server in a cell. Reads the global database.

    `destination`: as `Requirements.destination()`; `size`: columns of the row as they will be.
    """
    new = size or {}
    vcpus, memory_mb, disk_gb = (new.get(name, getattr(instance, name)) for name in SIZE)
    hints = RequestSpec.objects.filter(pk=instance.uuid).values_list("scheduler_hints", flat=True).first()
    return Requirements(
        instance.uuid, vcpus, memory_mb, disk_gb, **destination, project_id=instance.project_id,
        image_properties=_properties(instance.image), extra_specs=_specs(new.get("flavor") or instance.flavor),
        **_from_hints(instance.uuid, hints or {}),
    )  # fmt: skip


def _from_hints(server_id: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "same_host": _ids(hints.get("same_host")),
        "different_host": _ids(hints.get("different_host")),
        "group": server_groups.of_server(server_id),
    }


def _ids(hint: Any) -> frozenset[str]:
    """A hint names one server, or a list of servers."""
    return frozenset([hint] if isinstance(hint, str) else hint or ())


def _properties(image: Mapping[str, Any]) -> Mapping[str, str]:
    return image.get("properties") or {}


def _specs(flavor: Mapping[str, Any]) -> Mapping[str, str]:
    return flavor.get("extra_specs") or {}
