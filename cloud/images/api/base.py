"""Shared by the image views."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from cloud import errors
from cloud.api_base import JsonView, caller
from cloud.images import service
from cloud.images.models import Image
from cloud.images.representation import require_owner


class UnknownView(JsonView):
    """Any path without a view."""

    authentication_classes = ()
    permission_classes = ()

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise NotFound for any method."""
        raise errors.NotFound


def own_image(request: Request, image_id: str) -> Image:
    """Return an image that the caller may change. Raises NotFound, Forbidden."""
    image = service.visible_to(caller(request), image_id)
    require_owner(caller(request), image)
    return image
