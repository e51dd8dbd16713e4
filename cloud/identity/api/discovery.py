"""GET /identity and GET /identity/v3: the version and its address."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from cloud.identity.api.base import IdentityView, v3


def _version() -> dict[str, Any]:
    return {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": v3("/")}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }


class VersionsView(IdentityView):
    """The list of versions, of which there is one."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Answer 300, as Keystone does."""
        return Response({"versions": {"values": [_version()]}}, status=300)


class VersionView(IdentityView):
    """Version 3."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Show the document of version 3."""
        return Response({"version": _version()})
