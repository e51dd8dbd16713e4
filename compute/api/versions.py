"""The version documents, which clients read first and without a token."""

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
    """The list of API versions. v2.0 is not listed, because it is not served."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Return the list, which has one version."""
        return Response({"versions": [_version()]})


class VersionView(APIView):
    """The document of version 2.1."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Return the document."""
        version = _version()
        version["links"].append(
            {"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"}
        )
        version["media-types"] = [
            {"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}
        ]
        return Response({"version": version})
