"""os-aggregates: hosts are not grouped here, and clients that ask are told so.

`openstack hypervisor show` asks before it shows anything.
"""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import NotFound
from compute.api.base import ComputeView


class AggregatesView(ComputeView):
    """GET /os-aggregates."""

    def get(self, request: Request) -> Response:
        """None."""
        self.check("os_compute_api:os-aggregates:index")
        return Response({"aggregates": []})


class AggregateView(ComputeView):
    """GET /os-aggregates/{id}."""

    def get(self, request: Request, aggregate_id: str) -> Response:
        """There is none of any id."""
        self.check("os_compute_api:os-aggregates:show")
        raise NotFound(f"Aggregate {aggregate_id} could not be found.")
