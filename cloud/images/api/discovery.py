"""GET /image: the versions; the schemas of images; the import methods."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.api_base import JsonView
from cloud.images import schemas

# Versions and states of Glance's API; v2.9 is the newest of which all calls are here.
_VERSIONS = (("v2.9", "CURRENT"), ("v2.7", "SUPPORTED"), ("v2.5", "SUPPORTED"), ("v2.0", "SUPPORTED"))


class VersionsView(JsonView):
    """The list of versions, all at one address."""

    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        """Answer 300, as Glance does; 200 at /image/versions."""
        links = [{"rel": "self", "href": f"{settings.PUBLIC_URL}/image/v2/"}]
        versions = [{"id": name, "status": status, "links": links} for name, status in _VERSIONS]
        return Response({"versions": versions}, status=200 if request.path.endswith("versions") else 300)


class SchemaView(JsonView):
    """GET /v2/schemas/image and /v2/schemas/images."""

    schema_of = ""

    def get(self, request: Request) -> Response:
        """Show the schema."""
        return Response({"image": schemas.IMAGE, "images": schemas.IMAGES}[self.schema_of])


class ImportInfoView(JsonView):
    """GET /v2/info/import."""

    def get(self, request: Request) -> Response:
        """Show that there are no import methods: content is uploaded."""
        methods = {"description": "Import methods available.", "type": "array", "value": []}
        return Response({"import-methods": methods})
