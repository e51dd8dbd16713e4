"""The services of this cloud and their addresses. They are fixed: all are behind one address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from django.conf import settings

REGION = "RegionOne"
INTERFACES = ("public", "internal", "admin")


@dataclass(frozen=True, slots=True)
class Service:
    """One API in the catalog."""

    name: str
    type: str
    path: str
    description: str

    @property
    def id(self) -> str:
        """The id, the same in every cloud."""
        return _stable("service", self.name)

    @property
    def url(self) -> str:
        """The public address."""
        return f"{settings.PUBLIC_URL}{self.path}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service for one kind of client."""

    service: Service
    interface: str

    @property
    def id(self) -> str:
        """The id, the same in every cloud."""
        return _stable("endpoint", self.service.name, self.interface)


SERVICES = (
    Service("keystone", "identity", "/identity/v3", "Users, projects and tokens"),
    Service("nova", "compute", "/compute/v2.1", "Servers"),
    Service("glance", "image", "/image", "Images"),
)
ENDPOINTS = tuple(Endpoint(service, interface) for service in SERVICES for interface in INTERFACES)


def as_json() -> list[dict[str, Any]]:
    """Return the catalog of a token."""
    return [
        {
            "id": service.id, "name": service.name, "type": service.type,
            "endpoints": [
                {
                    "id": one.id, "interface": one.interface, "url": service.url,
                    "region": REGION, "region_id": REGION,
                }
                for one in ENDPOINTS if one.service is service
            ],
        }
        for service in SERVICES
    ]  # fmt: skip


def _stable(*words: str) -> str:
    return uuid5(NAMESPACE_URL, ":".join(("stillwater", *words))).hex
