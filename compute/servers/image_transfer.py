"""Image data between a host and the image service, authorised by a ticket: a host has no token of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from django.conf import settings

from cloud.tls import failures, files
from compute.virt.base import ImageSource, ImageUnusable, VirtError

CHUNK = 1 << 20
TIMEOUT = (5, 60)  # seconds to connect, and between two reads


class ImageServiceUnavailable(VirtError):
    """The image service does not answer, or answers with a temporary error."""

    retryable = True


def image_url(image_id: str) -> str:
    """Return the public URL of an image, e.g. for Location headers."""
    return f"{settings.PUBLIC_URL}/image/v2/images/{image_id}"


def source(image_id: str, ticket: str) -> ImageSource:
    """Return the function by which a driver downloads the image. It raises ImageServiceUnavailable, ImageUnusable."""

    def fetch(path: Path) -> None:
        headers = {"X-Image-Ticket": ticket}
        try:
            with _send("GET", image_id, TIMEOUT, headers=headers, stream=True) as answer:
                _judge(answer, image_id)
                with path.open("wb") as out:
                    for chunk in answer.iter_content(CHUNK):
                        out.write(chunk)
        except requests.RequestException as exc:
            raise ImageServiceUnavailable(f"image {image_id} cannot be fetched: {_reason(exc)}") from exc

    return fetch


def upload(image_id: str, ticket: str, path: Path) -> None:
    """Store a file as the image's data. Idempotent. Raises ImageServiceUnavailable, ImageUnusable."""
    headers = {"Content-Type": "application/octet-stream", "X-Image-Ticket": ticket}
    try:
        with path.open("rb") as data:
            answer = _send("PUT", image_id, (5, 600), data=data, headers=headers)
    except requests.RequestException as exc:
        raise ImageServiceUnavailable(f"image {image_id} cannot be stored: {_reason(exc)}") from exc
    if answer.status_code == 409 and "Retry-After" not in answer.headers:
        return  # an earlier try stored it
    _judge(answer, image_id)


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield the path of a temporary file on this host; the file is removed at the end."""
    folder = Path(settings.HOST_STATE) / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _send(method: str, image_id: str, timeout: tuple[float, float], **request: Any) -> requests.Response:
    """Send a request, verified by STILLWATER_TLS_CA where it is set. Raises RequestException."""
    if configured := files.configured():
        request["verify"] = str(configured.authority)
    try:
        return requests.request(method, f"{image_url(image_id)}/file", timeout=timeout, **request)
    except requests.RequestException:
        raise
    except OSError as exc:  # requests says so of a missing file of authorities
        raise requests.exceptions.SSLError(str(exc)) from exc


def _reason(error: requests.RequestException) -> str:
    return failures.describe(error) or type(error).__name__


def _judge(answer: requests.Response, image_id: str) -> None:
    if answer.status_code >= 500 or "Retry-After" in answer.headers:
        raise ImageServiceUnavailable(f"the image service answers {answer.status_code} for image {image_id}")
    if answer.status_code >= 400 or (answer.status_code == 204 and answer.request.method == "GET"):
        raise ImageUnusable(f"image {image_id}: the image service answers {answer.status_code}")
