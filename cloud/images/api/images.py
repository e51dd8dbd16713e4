"""/v2/images, /v2/images/{id} and /v2/images/{id}/tags/{tag}."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors, log
from cloud.api_base import JsonView, body, caller, whole_number
from cloud.drf_json import OrjsonParser
from cloud.images import listing, representation, schemas, service
from cloud.images.api.base import own_image
from cloud.images.models import Image, new_id

logger = log.get(__name__)
_DEFAULT_LIMIT, _MOST = 25, 1000


class JsonPatchParser(OrjsonParser):
    """The parser of Glance's content type for JSON patches."""

    media_type = "application/openstack-images-v2.1-json-patch"


class ImagesView(JsonView):
    """The collection of images."""

    def get(self, request: Request) -> Response:
        """List a page of the images that the caller may see, newest first by default."""
        query = request.query_params
        limit = min(whole_number(request, "limit", _DEFAULT_LIMIT), _MOST)
        visible = service.visible(caller(request))
        marker = None
        if query.get("marker"):
            marker = visible.filter(pk=query["marker"]).first()
            if marker is None:
                raise errors.BadRequest("Marker could not be found.")
        found = listing.filtered(visible, query, caller(request))
        page = list(listing.ordered(found, listing.order(query), marker)[: limit + 1])
        return Response(_listing(request, page[:limit], more=len(page) > limit > 0))

    def post(self, request: Request) -> Response:
        """Create an image without content. Raises Conflict when the id is taken."""
        asking = caller(request)
        if not (asking.project_id and (asking.has_role("member") or asking.is_admin)):
            raise errors.Forbidden("You are not authorized to complete add_image action.")
        fields = body(request, schemas.CREATE)
        image = Image(pk=fields.get("id") or new_id(), owner=asking.project_id)
        representation.write(image, fields, asking)
        try:
            with transaction.atomic():
                image.save(force_insert=True)
        except IntegrityError as exc:
            raise errors.Conflict(f"Image ID {image.pk} already exists!") from exc
        logger.info("image.created", image=image.pk)
        location = request.build_absolute_uri(f"/image/v2/images/{image.pk}")
        return Response(representation.as_json(image), status=201, headers={"Location": location})


class ImageView(JsonView):
    """One image."""

    parser_classes = (JsonPatchParser,)

    def get(self, request: Request, image_id: str) -> Response:
        """Show an image."""
        return Response(representation.as_json(service.visible_to(caller(request), image_id)))

    def patch(self, request: Request, image_id: str) -> Response:
        """Change fields, properties and tags by a JSON patch; all or nothing."""
        own_image(request, image_id)
        operations = body(request, schemas.PATCH)
        with transaction.atomic():
            image = Image.objects.select_for_update().get(pk=image_id)
            representation.patch(image, operations, caller(request))
            image.save(update_fields=[*(set(schemas.WRITABLE)), "properties", "updated_at"])
        return Response(representation.as_json(image))

    def delete(self, request: Request, image_id: str) -> Response:
        """Delete an image and its content."""
        service.delete(own_image(request, image_id))
        return Response(status=204)


class TagView(JsonView):
    """/v2/images/{id}/tags/{tag}."""

    def put(self, request: Request, image_id: str, tag: str) -> Response:
        """Add a tag. Idempotent."""
        return self._write(request, image_id, lambda tags: [*tags, tag])

    def delete(self, request: Request, image_id: str, tag: str) -> Response:
        """Remove a tag. Raises NotFound when the image does not have it."""

        def without(tags: list[str]) -> list[str]:
            if tag not in tags:
                raise errors.NotFound(f"Image {image_id} has no tag {tag}.")
            return [one for one in tags if one != tag]

        return self._write(request, image_id, without)

    def _write(self, request: Request, image_id: str, change: Any) -> Response:
        own_image(request, image_id)
        with transaction.atomic():
            image = Image.objects.select_for_update().get(pk=image_id)
            operation = {"op": "replace", "path": "/tags", "value": sorted(set(change(image.tags)))}
            representation.patch(image, [operation], caller(request))
            image.save(update_fields=["tags", "updated_at"])
        return Response(status=204)


def _listing(request: Request, images: list[Image], *, more: bool) -> dict[str, Any]:
    query = request.query_params.copy()
    query.pop("marker", None)
    listing_of = "/v2/images"
    answer: dict[str, Any] = {
        "images": [representation.as_json(image) for image in images],
        "first": f"{listing_of}?{query.urlencode()}" if query else listing_of,
        "schema": "/v2/schemas/images",
    }
    if more:
        query["marker"] = images[-1].pk
        answer["next"] = f"{listing_of}?{query.urlencode()}"
    return answer
