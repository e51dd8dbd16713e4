"""/v2/images/{id}/file: content is streamed, never whole in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import FileResponse, HttpRequest, HttpResponseBase
from gunicorn.http.errors import ParseException
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors, log
from cloud.api_base import JsonView, caller
from cloud.identity.authentication import CHALLENGE, TokenAuthentication
from cloud.images import service, upload
from cloud.images.api.base import own_image
from cloud.images.authentication import TicketAuthentication, TicketHolder, hide_ticket
from cloud.images.models import Image, Status

logger = log.get(__name__)


class TicketOrToken(TicketAuthentication):
    """Authentication by ticket, with Keystone's challenge for requests without ticket and token."""

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge, which makes DRF answer 401, not 403."""
        return CHALLENGE


class FileView(JsonView):
    """The content of one image, for users with a token and hosts with a ticket."""

    authentication_classes = (TicketOrToken, TokenAuthentication)
    permission_classes = (IsAuthenticated,)
    parser_classes = ()  # nothing may read the body before `put` does

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Remove the ticket from the address before anything can log it."""
        hide_ticket(request._request)
        super().initial(request, *args, **kwargs)

    def get(self, request: Request, image_id: str) -> HttpResponseBase:
        """Answer 200 with the content, 304 for a matching If-None-Match, 204 while there is none."""
        image = self._readable(request, image_id)
        if image.status != Status.ACTIVE:
            return Response(status=204)
        etag = f'"{image.checksum}"'
        if request.headers.get("If-None-Match") == etag:
            return Response(status=304, headers={"ETag": etag})
        try:
            file = service.path(image.pk).open("rb")
        except FileNotFoundError as exc:
            logger.error("image.file_missing", image=image.pk)
            raise errors.NotFound(f"The content of image {image.pk} could not be found.") from exc
        headers = {"Content-MD5": image.checksum, "ETag": etag}
        return FileResponse(file, content_type="application/octet-stream", headers=headers)

    def put(self, request: Request, image_id: str) -> Response:
        """Store the content; 204 when it is checked and in place."""
        if not isinstance(request.auth, TicketHolder):
            own_image(request, image_id)
        if (request.content_type or "").split(";")[0].strip().lower() != "application/octet-stream":
            raise errors.UnsupportedMediaType("Image content is sent as application/octet-stream.")
        read, expected = _source(request._request)
        upload.receive(image_id, read, expected)
        return Response(status=204)

    def _readable(self, request: Request, image_id: str) -> Image:
        if isinstance(request.auth, TicketHolder):
            image = Image.objects.filter(pk=image_id).exclude(status=Status.DELETED).first()
            if image is None:
                raise errors.NotFound(f"Image {image_id} could not be found.")
            return image
        image = service.visible_to(caller(request), image_id)
        if not (caller(request).is_admin or caller(request).has_role("member")):
            raise errors.Forbidden("You are not authorized to complete download_image action.")
        return image


def _source(request: HttpRequest) -> tuple[Callable[[int], bytes], int | None]:
    """Return how to read the body, and its declared length: None for a chunked body."""
    if request.META.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked":
        # Django treats a body without length as empty; by this flag the server says that it finds the end itself.
        if not request.META.get("wsgi.input_terminated"):
            raise errors.BadRequest("This server needs a Content-Length.")
        return _whole_chunks(request.META["wsgi.input"].read), None
    raw = request.META.get("CONTENT_LENGTH") or ""
    if not raw.isdigit():
        raise errors.BadRequest("This server needs a Content-Length.")
    return request.read, int(raw)


def _whole_chunks(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Turn malformed chunks into OSError, as for a lost connection: the upload broke off."""

    def checked(size: int) -> bytes:
        try:
            return read(size)
        except ParseException as exc:
            raise OSError("malformed chunk") from exc

    return checked
