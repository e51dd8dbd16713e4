"""os-hypervisors: capacity and usage of the nodes of all cells. A cell that is down is left out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest, NotFound, NotImplementedHere
from compute.api import paging, service_drain
from compute.api.base import ComputeView
from compute.api.fields import check_query_keys
from compute.contract import validation
from compute.contract.microversion import Version
from compute.errors import CellDown
from compute.hosts import services
from compute.hosts.services import CellResults, Hypervisor

RULE = "os_compute_api:os-hypervisors:"
NUMBERS = (
    "vcpus", "memory_mb", "local_gb", "vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb",
    "free_disk_gb", "current_workload", "running_vms", "disk_available_least",
)  # fmt: skip


class HypervisorsView(ComputeView):
    """GET /os-hypervisors."""

    detail = False
    rule = f"{RULE}list"

    def get(self, request: Request) -> Response:
        """List hypervisors; since 2.33 by page, since 2.53 by name pattern and with servers."""
        self.check(self.rule)
        check_query_keys(self, "limit", "marker", "hypervisor_hostname_pattern", "with_servers")
        with_servers = self.version >= (2, 53) and asks_servers(request)
        seen = services.hypervisors(counts=self.detail and self.version <= (2, 87), servers=with_servers)
        pattern = request.query_params.get("hypervisor_hostname_pattern")
        if pattern is not None and self.version >= (2, 53):
            shown, paged = _matching_unpaged(seen, pattern, request), False
        else:
            shown, paged = self._page(seen), self.version >= (2, 33)
        answer: dict[str, Any] = {
            "hypervisors": [
                as_json(one, self.version, detail=self.detail, with_servers=with_servers) for one in shown
            ]
        }
        if paged and shown:
            path = "/os-hypervisors/detail" if self.detail else "/os-hypervisors"
            more = paging.next_link(request, path, len(shown), str(_id(shown[-1], self.version)))
            if more:
                answer["hypervisors_links"] = more
        return Response(answer)

    def _page(self, seen: CellResults[Hypervisor]) -> list[Hypervisor]:
        """Return a page. Raises BadRequest for an unknown marker, CellDown when it may be in a down cell."""
        if self.version < (2, 33):
            return seen.found
        try:
            return paging.page(seen.found, self.request, "uuid" if self.version >= (2, 53) else "number")
        except paging.UnknownMarker:
            _raise_if_cell_down(seen)
            raise


class HypervisorsDetailView(HypervisorsView):
    """GET /os-hypervisors/detail."""

    detail = True
    rule = f"{RULE}list-detail"


class HypervisorView(ComputeView):
    """GET /os-hypervisors/{id}."""

    def get(self, request: Request, hypervisor_id: str) -> Response:
        """Show a hypervisor in full."""
        self.check(f"{RULE}show")
        check_query_keys(self, "with_servers")
        with_servers = self.version >= (2, 53) and asks_servers(request)
        found = _by_id(hypervisor_id, self.version, counts=self.version <= (2, 87), servers=with_servers)
        return Response({"hypervisor": as_json(found, self.version, detail=True, with_servers=with_servers)})


class StatisticsView(ComputeView):
    """GET /os-hypervisors/statistics."""

    until = (2, 87)

    def get(self, request: Request) -> Response:
        """Return the sums over the hosts that are enabled."""
        self.check(f"{RULE}statistics")
        counted = [numbers(one) for one in services.hypervisors(counts=True).found if not one.service.disabled]
        sums = {name: sum(one[name] for one in counted) for name in NUMBERS}
        return Response({"hypervisor_statistics": {"count": len(counted), **sums}})


class UptimeView(ComputeView):
    """GET /os-hypervisors/{id}/uptime."""

    until = (2, 87)

    def get(self, request: Request, hypervisor_id: str) -> Response:
        """Return the uptime. Raises BadRequest when the host is down."""
        self.check(f"{RULE}uptime")
        found = _by_id(hypervisor_id, self.version)
        if not found.service.is_up:
            raise BadRequest(f"Compute service of {found.node.host} is unavailable at this time.")
        text = uptime(found)
        if text is None:
            raise NotImplementedHere("Virt driver does not implement uptime function.")
        return Response({"hypervisor": {**as_json(found, self.version), "uptime": text}})


class SearchView(ComputeView):
    """GET /os-hypervisors/{pattern}/search."""

    until = (2, 52)

    def get(self, request: Request, hypervisor_id: str) -> Response:
        """List the hypervisors whose name contains the pattern."""
        self.check(f"{RULE}search")
        found = _matching(services.hypervisors(), hypervisor_id)
        return Response({"hypervisors": [as_json(one, self.version) for one in found]})


class HypervisorServersView(ComputeView):
    """GET /os-hypervisors/{pattern}/servers."""

    until = (2, 52)

    def get(self, request: Request, hypervisor_id: str) -> Response:
        """List the hypervisors whose name contains the pattern, with their servers."""
        self.check(f"{RULE}servers")
        found = _matching(services.hypervisors(servers=True), hypervisor_id)
        return Response({"hypervisors": [as_json(one, self.version, with_servers=True) for one in found]})


def asks_servers(request: Request) -> bool:
    """Return whether `with_servers` is true. Raises InvalidInput."""
    asked = request.query_params.get("with_servers")
    return asked is not None and validation.is_true(validation.check_query("with_servers", asked, validation.BOOLEAN))


def as_json(
    one: Hypervisor, version: Version, *, detail: bool = False, with_servers: bool = False
) -> dict[str, Any]:
    """Return a hypervisor as a microversion shows it."""
    shown: dict[str, Any] = {
        "id": _id(one, version),
        "hypervisor_hostname": one.node.hypervisor_hostname,
        "state": "up" if one.service.is_up else "down",
        "status": "disabled" if one.service.disabled else "enabled",
    }
    if detail:
        shown |= _facts(one, version)
        shown |= numbers(one) | _cpu(one, version) if version <= (2, 87) else {"uptime": uptime(one)}
    if with_servers and (one.servers or version >= (2, 75)):
        shown["servers"] = one.servers
    return shown


def numbers(one: Hypervisor) -> dict[str, int]:
    """Return the capacity and usage of a node."""
    node = one.node
    free_disk = node.disk_gb - node.disk_gb_used
    return {
        "vcpus": node.vcpus, "memory_mb": node.memory_mb, "local_gb": node.disk_gb,
        "vcpus_used": node.vcpus_used, "memory_mb_used": node.memory_mb_used,
        "local_gb_used": node.disk_gb_used, "free_ram_mb": node.memory_mb - node.memory_mb_used,
        "free_disk_gb": free_disk, "current_workload": one.busy, "running_vms": one.running,
        "disk_available_least": free_disk,
    }  # fmt: skip


def uptime(one: Hypervisor) -> str | None:
    """Return a line like that of uptime(1), which clients parse; users and load are not known here.

    None when the boot time is not known or the host is down.
    """
    if one.node.started_at is None or not one.service.is_up:
        return None
    now = timezone.now()
    minutes = max(0, int((now - one.node.started_at).total_seconds())) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    since = (f"{days} day{'s' if days > 1 else ''}, " if days else "") + f"{hours:2d}:{minutes % 60:02d}"
    return f" {now:%H:%M:%S} up {since},  ? users,  load average: ?, ?, ?"


def _facts(one: Hypervisor, version: Version) -> dict[str, Any]:
    service = one.service
    return {
        "hypervisor_type": one.node.hypervisor_type,
        "hypervisor_version": one.node.hypervisor_version,
        "host_ip": one.node.host_ip,
        "service": {
            "id": service.uuid if version >= (2, 53) else services.number(service.uuid),
            "host": service.host,
            "disabled_reason": service_drain.reason(service),
        },
    }


def _cpu(one: Hypervisor, version: Version) -> dict[str, Any]:
    info = one.node.cpu_info or {}
    return {"cpu_info": info if version >= (2, 28) else orjson.dumps(info).decode()}


def _id(one: Hypervisor, version: Version) -> str | int:
    return one.uuid if version >= (2, 53) else one.number


def _by_id(hypervisor_id: str, version: Version, **more: bool) -> Hypervisor:
    """Return a hypervisor. Raises BadRequest for an invalid id, NotFound, CellDown when it may be in a down cell."""
    if version >= (2, 53):
        try:
            UUID(hypervisor_id)
        except ValueError as exc:
            raise BadRequest(f"Invalid uuid {hypervisor_id}") from exc
    seen = services.hypervisors(**more)
    for one in seen.found:
        if str(_id(one, version)) == hypervisor_id:
            return one
    _raise_if_cell_down(seen)
    raise NotFound(f"Hypervisor with ID '{hypervisor_id}' could not be found.")


def _matching(seen: CellResults[Hypervisor], pattern: str) -> list[Hypervisor]:
    """Return those whose name contains the pattern. Raises NotFound; CellDown when a down cell may have one."""
    matching = [one for one in seen.found if pattern.lower() in one.node.hypervisor_hostname.lower()]
    if not matching:
        _raise_if_cell_down(seen)
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return matching


def _matching_unpaged(seen: CellResults[Hypervisor], pattern: str, request: Request) -> list[Hypervisor]:
    if "limit" in request.query_params or "marker" in request.query_params:
        raise BadRequest(
            "Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported."
        )
    return _matching(seen, pattern)


def _raise_if_cell_down(seen: CellResults[Hypervisor]) -> None:
    """Raise CellDown when a cell is down: it may have the hypervisor that was not found."""
    if seen.down:
        raise CellDown(seen.down[0].name)
