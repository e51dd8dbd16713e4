"""The versions documents: what clients read first, without a token."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from compute.api.base import link
from compute.contract import microversion


def _version() -> dict[str, Any]:
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": microversion.text(microversion.MAXIMUM),
        "min_version": microversion.text(microversion.MINIMUM),
        "updated": "2013-07-23T11:33:21Z",
        "links": [{"rel": "self", "href": link("/")}],
    }


class VersionsView(APIView):
    """All versions. v2.0 is not among them: nothing answers there."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """The list of one."""
        return Response({"versions": [_version()]})


class VersionView(APIView):
    """Version 2.1."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Its document."""
        version = _version()
        version["links"].append(
            {"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"}
        )
        version["media-types"] = [
            {"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}
        ]
        return Response({"version": version})
