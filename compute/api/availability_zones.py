"""os-availability-zone: the zones of the services."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from compute.api.base import ComputeView
from compute.api.fields import moment
from compute.hosts import services as hosts_services
from compute.hosts.services import INTERNAL_ZONE, ServiceRecord


class AvailabilityZonesView(ComputeView):
    """GET /os-availability-zone: the names, for every caller."""

    def get(self, request: Request) -> Response:
        """List the zones of hosts, without the internal zone of the other services."""
        self.check("os_compute_api:os-availability-zone:list")
        zones = [
            _zone(name, available=available, hosts=None)
            for name, available, _ in _zones(hosts_services.services().found)
            if name != INTERNAL_ZONE
        ]
        return Response({"availabilityZoneInfo": zones})


class AvailabilityZonesDetailView(ComputeView):
    """GET /os-availability-zone/detail: with hosts and services."""

    def get(self, request: Request) -> Response:
        """List every zone; a zone that is not available has no hosts, as in Nova."""
        self.check("os_compute_api:os-availability-zone:detail")
        zones = [
            _zone(name, available=available, hosts=_hosts(members) if available else None)
            for name, available, members in _zones(hosts_services.services().found)
        ]
        return Response({"availabilityZoneInfo": zones})


def _zones(services: list[ServiceRecord]) -> list[tuple[str, bool, list[ServiceRecord]]]:
    """Return (name, whether an enabled service takes work, enabled services), available zones first as in Nova."""
    zones: dict[str, list[ServiceRecord]] = {name: [] for name in sorted({one.zone for one in services})}
    for one in services:
        if not one.service.disabled:
            zones[one.zone].append(one)
    listed = [
        (name, not all(one.service.drain_state for one in enabled), enabled)
        for name, enabled in zones.items()
    ]
    return sorted(listed, key=lambda zone: not zone[1])


def _zone(name: str, *, available: bool, hosts: dict[str, Any] | None) -> dict[str, Any]:
    return {"zoneName": name, "zoneState": {"available": available}, "hosts": hosts}


def _hosts(services: list[ServiceRecord]) -> dict[str, dict[str, Any]]:
    hosts: dict[str, dict[str, Any]] = {}
    for one in services:
        service = one.service
        hosts.setdefault(service.host, {})[service.binary] = {
            "active": not service.disabled,
            "available": service.is_up,
            "updated_at": moment(service.last_seen_up),
        }
    return hosts
