"""/v3/domains, services, endpoints and regions: fixed, therefore read-only."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors
from cloud.identity import catalog
from cloud.identity.api.base import IdentityView, require, v3
from cloud.identity.models import DOMAIN_ID, DOMAIN_NAME

# Query keys that filter a list; each is compared with the field of the same name.
_FILTERS = ("name", "type", "interface", "service_id", "region_id")


class FixedView(IdentityView):
    """A list of records that never change. With an id: one of them."""

    kind = ""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return all records."""

    def get(self, request: Request, record_id: str = "") -> Response:
        """Show the list or one record, only to admins."""
        require(request, f"get_{self.kind}" if record_id else f"list_{self.kind}s")
        records = [record | {"links": self._links(record["id"])} for record in self.records()]
        if record_id:
            return Response({self.kind: self._one(records, record_id)})
        query = request.query_params
        wanted = {key: query[key] for key in _FILTERS if key in query}
        found = [one for one in records if all(one.get(key) == value for key, value in wanted.items())]
        links = {"next": None, "self": v3(f"/{self.kind}s"), "previous": None}
        return Response({f"{self.kind}s": found, "links": links})

    def _one(self, records: list[dict[str, Any]], record_id: str) -> dict[str, Any]:
        for record in records:
            if record["id"] == record_id:
                return record
        raise errors.NotFound(f"Could not find {self.kind}: {record_id}.")

    def _links(self, record_id: str) -> dict[str, str]:
        return {"self": v3(f"/{self.kind}s/{record_id}")}


class DomainsView(FixedView):
    """The one domain."""

    kind = "domain"

    def records(self) -> list[dict[str, Any]]:
        """Return the domain Default."""
        text = "The default domain"
        return [
            {
                "id": DOMAIN_ID,
                "name": DOMAIN_NAME,
                "description": text,
                "enabled": True,
                "tags": [],
                "options": {},
            }
        ]


class ServicesView(FixedView):
    """The services of the catalog."""

    kind = "service"

    def records(self) -> list[dict[str, Any]]:
        """Return one record per API."""
        return [
            {
                "id": one.id,
                "name": one.name,
                "type": one.type,
                "description": one.description,
                "enabled": True,
            }
            for one in catalog.SERVICES
        ]


class EndpointsView(FixedView):
    """The endpoints of the catalog."""

    kind = "endpoint"

    def records(self) -> list[dict[str, Any]]:
        """Return three records per service."""
        return [
            {
                "id": one.id, "service_id": one.service.id,
                "interface": one.interface, "url": one.service.url,
                "region": catalog.REGION, "region_id": catalog.REGION, "enabled": True,
            }
            for one in catalog.ENDPOINTS
        ]  # fmt: skip


class RegionsView(FixedView):
    """The one region."""

    kind = "region"

    def records(self) -> list[dict[str, Any]]:
        """Return RegionOne."""
        return [{"id": catalog.REGION, "description": "", "parent_region_id": None}]
